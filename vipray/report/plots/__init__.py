"""The plots of a report, each a function from run data to one SVG element."""

from vipray.report.plots.allocation import allocation_svg
from vipray.report.plots.calibration import calibration_svg
from vipray.report.plots.reward import reward_svg
from vipray.report.plots.time_split import time_split_svg
from vipray.report.plots.timeline import timeline_svg

__all__ = ["allocation_svg", "calibration_svg", "reward_svg", "time_split_svg", "timeline_svg"]
