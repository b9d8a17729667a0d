"""The report of a run: what was spent, what was predicted, what came of it. Reads a run folder and nothing else."""

from vipray.report.page import write_report
from vipray.report.run_data import RunData, load_run
from vipray.report.terminal import summary_table

__all__ = ["RunData", "load_run", "summary_table", "write_report"]
