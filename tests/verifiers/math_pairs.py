"""Pairs of a gold and an answer in a box, by the kind of fault that judges them wrongly."""

from __future__ import annotations

RIGHT = {
    "several parts": [
        ("5 and 7", "7, 5"), (r"5 \text{ or } 7", r"7 \text{ and } 5"), ("(1,2), (3,4)", "(3,4), (1,2)"),
        ("n = 2, 5, 13", "n=13, n=2, n=5"), (r"\pm 3", "3, -3"), ("-1,3,3", "3,-1,3"),
        (r"0.09 \text{ OR } \frac{9}{100}", "0.09"),
    ],
    "equations": [
        ("9", "p + q + r = 9"), ("24", "abc=24"), ("m+n=9", "2m+2n=18"), ("area = 9", "9"), ("f^{-1}(x)=x+5", "x+5"),
        ("y=2x-3", r"x=\frac{y+3}{2}"), ("6", "6=x"),
        ("2x+3y=6", "4x+6y=12"), ("2x+3y=6", r"y = 2-\frac{2}{3}x"), ("x^2+y^2=25", "x^2+y^2-25=0"),
        ("y=2x+1", "2x+1"), ("2x+1", "y=2x+1"), ("f(x)=x+1", "1+x"), ("113", "m+n=113"), ("5", "2+3=5"), ("x=5", "5"),
        ("5", "x=5"), ("x=2, y=3", "y=3, x=2"), ("(1,2)", "(x,y)=(1,2)"), ("7", "= 7"), (r"a \ne 1", r"a\neq 1"),
    ],
    "leading zeros": [
        ("007", "7"), ("7", "007"), ("010", "10"), ("034", "34.0"), ("0", "-0"),
    ],
    "scientific": [
        ("100", "1e2"), ("0.0015", "1.5E-3"), (r"8.43 \times 10^7", "84300000"), ("6.02e23", r"6.02\cdot 10^{23}"),
        ("2e", "2 e"),
    ],
    "brackets": [
        ("-2<x<5", r"x<5 \text{ and } x>-2"), ("(-2,5]", r"x\le 5, x>-2"), ("(2,5)", "2<x<5"),
        ("(0,1]", r"0 < x \le 1"), (r"x \ge 2", r"[2,\infty)"), (r"[2,\infty)", r"x\geq 2"), ("x>3", "3<x"),
        (r"[2,\infty)", r"[2,+\infty)"), ("2x>6", "x>3"), ("-x<3", "x>-3"), ("-2<x<3", "3 > x > -2"),
        (r"\{1,2,3\}", "3,2,1"),
        (r"(-\infty,-2]\cup[3,\infty)", r"x \le -2 \text{ or } x \ge 3"), (r"\emptyset", r"\{\}"),
        (r"(\frac12,\frac13)", r"\left(0.5, 1/3\right)"), (r"x \in (1,2)", "(1,2)"), ("(1,2)", "]1,2["),
    ],
    "percent": [
        (r"50\%", "50"), (r"50\%", "0.5"), ("50", r"50\%"), ("0.5", r"50\%"), (r"50\%", r"50\text{ percent}"),
    ],
    "units": [
        (r"10\text{ cm}", r"10\text{ centimeters}"), (r"9\text{ yd}^2", r"9\text{ square yards}"),
        (r"30\text{ km/h}", r"30\text{ kilometers per hour}"), (r"20^\circ C", r"20\text{ degrees Celsius}"),
        (r"72\text{ apples}", "72 apples in total"), (r"72\text{ cm}", "72 in total"), ("7", r"7\text{ months}"),
        ("7", "7 booths in the north"), (r"5\text{ miles}", r"5\text{ miles north}"),
        ("5", r"5\text{ meters}"), ("5", r"5\,\mathrm{m/s}"), (r"5\text{ cm}", "5"), (r"90^\circ", "90"),
        ("90", r"90^{\circ}"), ("12", r"\$12.00"), (r"\$23{,}000", "23000"), ("5000000", r"5\text{ million}"),
    ],
    "roots and powers": [
        ("x^2-y^2", "(x-y)(x+y)"), (r"\sqrt{3+2\sqrt{2}}", r"1+\sqrt{2}"), ("2^{n^2+n}", "2^{n}2^{n^2}"),
        (r"3\sqrt{2}", r"\sqrt{18}"), ("2^{10}-1", "1023"), ("x^2-1", "(x-1)(x+1)"), ("2", r"\sqrt{4}"),
        (r"\frac{x}{x-1}", r"1+\frac{1}{x-1}"), (r"42x\sqrt{5x}", r"42\sqrt5 x\sqrt{x}"), ("1+2i", "2i+1"),
        (r"\frac{1}{1+i}", r"\frac{1-i}{2}"), (r"\binom{n}{2}", r"\frac{n(n-1)}{2}"), ("24", "4!"),
        (r"\log_2 3", r"\frac{\ln 3}{\ln 2}"), ("2i", r"2\mathrm{i}"),
    ],
    "fractions": [
        (r"\frac34", "0.75"), (r"\dfrac{3}{4}", r"\frac{6}{8}"), ("2.5", r"2\frac12"), ("1 1/2", "1.5"),
        (r"-\frac{1}{2}", r"\frac{-1}{2}"), ("½", ".5"),
    ],
    "rounded": [
        (r"\frac{1}{7000000}", "0.000000142857"),
        (r"\frac13", "0.333333"), (r"\sqrt{2}", "1.4142136"), (r"\pi", "3.141593"),
    ],
    "separators": [
        ("1,234", "1234"), ("1234", "1{,}234"), ("1234", r"1\,234"), ("1234.5", "1,234.50"),
    ],
    "ratios and times": [
        ("3:4", "3:4"), ("3:4", r"\frac34"), ("3:30 PM", r"3:30\text{ p.m.}"), ("05:54", "5:54"),
    ],
    "words": [
        (r"\text{Yes}", "yes"), (r"\text{(A)}", "A"), ("A", r"\textbf{(A)}"), ("No solution", r"\text{no solution}"),
    ],
    "matrices": [
        (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{bmatrix} 1 \\ 2.0 \end{bmatrix}"),
    ],
    "bases": [
        ("1001_2", "1001_{2}"),
    ],
    "chains": [
        ("6", r"x = 2\cdot 3 = 6"), ("6", r"\sqrt{36}=6"), (r"\sqrt{2}", r"x=\frac{2}{\sqrt{2}}=\sqrt{2}"),
        ("6", r"\text{Total} = 2+4 = 6"), ("6", "2+4=3+3=6"),
    ],
    "spelling": [
        ("-3.5", "{-}3.5"), (r"28\%", r"28\text{ }\%"), ("4", r"\text{The answer is } 4"), ("4", r"\text{Answer: }4"),
    ],
}  # fmt: skip

WRONG = {
    "several parts": [
        ("5 and 7", "5"), ("5,7,9", "5,7"), ("5,7", "5,7,9"), ("5", "5, 6"), ("33", r"33\text{ or }34"),
        ("(1,2), (3,4)", "(2,1), (3,4)"), (r"\pm 3", "3"), ("3", r"\pm 3"), (r"-12 \text{ or } -30", "-12"),
    ],
    "equations": [
        ("x + y = 7", "7"), ("x+y+z=1", "1"), ("xyz = 8", "8"), ("x+y=7, x+y=8", "7, 8"), ("x^{-1}=5", "5"),
        ("xy=6", "6"),
        ("2x+3y=6", "2x+3y=7"), ("2x-3y=0", "0"), ("0", "2x-3y=0"), ("6", "2x+3y=6"), ("y=2x+1", "x=2y+1"),
        ("x=2, y=3", "2, 3"), ("x=2, y=3", "3, 2"),
        ("x=5", "y=5"), ("5", "2+3=6"), ("6", "2+3=6"), ("5", "3=5"), ("4", "x^2=4"), ("0", "x+y=0"),
        ("f(x)=x+1", "f(x)=x+2"), (r"a \ne 1", "a=1"), ("x=3", "x>3"), ("2x+1", "2x+1=0"),
    ],
    "leading zeros": [
        ("010", "8"), ("034", "340"), ("-034", "34"),
    ],
    "scientific": [
        ("5", "5e35"), ("3", r"3 \times 10^{8}"), ("1.5", "1.5E-3"), ("6.02e23", "6.02"), ("2e", "2"),
        ("12345678901234567890", r"1.2345678901234567\times10^{19}"),
    ],
    "brackets": [
        (r"(1,\infty)", "1<x<2<3"), (r"(1,\infty)", "1<x<3<5"), ("-2<x<5", r"x<5 \text{ or } x>-2"),
        ("(-2,5)", r"x<5 \text{ and } y>-2"), ("(5,-2)", r"x<-2 \text{ and } x>5"),
        ("-2<x<5", r"x\le 5 \text{ and } x>-2"),
        ("(0,1]", "(0,1)"), ("(1,2)", "[1,2]"), ("(1,2)", r"\{1,2\}"), (r"\{1,2\}", "(1,2)"), ("(1,2,3)", "(1,3,2)"),
        (r"x \ge 2", r"(2,\infty)"), ("x>3", r"x \geq 3"), ("x>3", "x<3"), ("-x<3", "x<-3"), (r"\emptyset", "0"),
        (r"$x \le -2$ or $x \ge 3$", r"x \le -2"), ("(6,235)", "6235"),
    ],
    "percent": [
        (r"50\%", "5"), ("0.5", "50"), ("50", "0.5"), ("50", "50/100"), ("0.5", r"0.5\%"), (r"40\%", r"40^\circ"),
    ],
    "units": [
        (r"12\text{ square meters}", r"12\text{ square feet}"), (r"9\text{ cubic feet}", r"9\text{ cubic inches}"),
        (r"12\text{ sq ft}", r"12\text{ sq in}"), (r"60\text{ miles per second}", r"60\text{ miles per hour}"),
        (r"60\text{ miles per hour}", r"60\text{ miles}"), (r"30\text{ m/s}", r"30\text{ m/min}"),
        (r"20\text{ degrees Celsius}", r"20\text{ degrees Fahrenheit}"),
        (r"5\text{ miles north}", r"5\text{ miles south}"),
        (r"5\text{ kilowatts}", r"5\text{ kilowatt hours}"), (r"5\text{ June}", "5"),
        (r"5\text{ cm}", r"5\text{ m}"), (r"5\text{ cm}", r"5\text{ cm}^2"), ("5", "5 million"),
        ("12", r"1\text{ dozen}"), ("5", "5m"), ("2", "2a"), ("2", "2xyz"), ("2", r"2\mathrm{i}"),
        ("5", r"5\text{ and not }6"),
    ],
    "roots and powers": [
        ("xy", "|xy|"), ("xy", r"\sqrt{x^2y^2}"), ("|x+y|", "|x|+|y|"), ("ab", "|a||b|"), ("abcd", "abc|d|"),
        ("x", "10-|x-10|"), ("e^{100}", "e^{100}+1"), (r"3^{100}\sqrt{2}", r"3^{100}\sqrt{2}+1"),
        ("10^{40}", r"\sqrt{10^{80}+1}"), ("e^{100}x=1", "(e^{100}+1)x=1"), (r"\frac{5}{2}", r"1\frac{3}{2}"),
        (r"(1+\sqrt2)^{200}+(1-\sqrt2)^{200}", r"(1+\sqrt2)^{200}"),
        (r"3\sqrt{2}", "3"), ("2^{10}", "10"), ("x^2-1", "y^2-1"), ("x", "|x|"), (r"\sqrt{x^2}", "x"), ("AB", "ab"),
        ("3x", "3"), ("3", "3x"), ("24", "4"), (r"\cos 20", r"\cos 20^\circ"), ("1+2i", "1-2i"),
    ],
    "fractions": [
        (r"\frac34", "3"), (r"2\frac{1}{2}", "1"), (r"1\frac{1}{2}", r"\frac{11}{2}"), (r"-\frac12", r"\frac12"),
    ],
    "rounded": [
        (r"\frac{1}{3000000}", "0.000000"), (r"\frac{1}{1500000}", "0.000001"), (r"\frac{\pi}{10^8}", "0.000000"),
        (r"\frac{1}{7000000}", "0.000000143"),
        (r"\frac13", "0.33"), (r"\frac13", "0.333334"), (r"\pi", "3.14"), (r"\pi", r"\frac{22}{7}"), ("3.14", r"\pi"),
        ("1", "0.999999999"), ("0", "10^{-12}"), ("0", r"\sqrt{10^{-200}}"), ("1000000", "1000001"),
        (r"\sqrt{2}", "1.414213"), ("262537412640768744", r"e^{\pi\sqrt{163}}"),
    ],
    "separators": [
        ("1,234", "1"), ("1,234", "234"), ("1234", "1,2,3,4"), ("100", "1,00"), ("1000", "1.000"), ("34", "3 4"),
    ],
    "ratios and times": [
        ("3/45", "3:45"), ("10:5", "10:05"), ("3:04", "3:4"), (r"\frac{3}{4}", "3:04"),
        ("3:4", "4:3"), ("3:4", "3"), ("10:15", "10:51"), ("3:30 PM", "3:30 AM"),
    ],
    "words": [
        (r"\text{Yes}", r"\text{No}"), (r"\text{(A)}", "B"), ("No solution", r"\text{solution}"), ("II", "III"),
    ],
    "matrices": [
        (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix} 2 \\ 1 \end{pmatrix}"),
        (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix} 1 & 2 \end{pmatrix}"),
        ("2", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"),
    ],
    "bases": [
        ("1001_2", "1001"), ("1001", "1001_2"), ("1001_2", "1001_3"),
    ],
    "chains": [
        ("5", "x = 2+2 = 5"), ("4", "x = 3 = 4"), ("4", r"x=\sqrt{9}=4"), ("2", "x=4=2"), ("4", "x=4=2"),
        ("6", "x=y=6"), ("6", r"\sqrt{35}=6"), ("6", "2+4=3+4=6"), ("6", r"\text{Total} = 2+5 = 6"),
        ("(1,3)", "(x,y)=(1,2)=(1,3)"),
    ],
    "primes": [
        ("x", "x'"), ("y'", "y"), ("5'", "5''"), ("7", "7'"), ("x", r"x^\prime"), ("x", r"\dot{x}"), ("f'", "f"),
    ],
}  # fmt: skip
