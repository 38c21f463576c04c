"""Small helpers for training scripts, one a file.

Imported when the package is, not on first use: each function has the name of its module, and whichever came last under
that name would win.
"""

from art.utils.format_message import format_message
from art.utils.get_model_step import get_model_step
from art.utils.iterate_dataset import iterate_dataset
from art.utils.limit_concurrency import limit_concurrency
from art.utils.log_http_errors import log_http_errors
from art.utils.record_provenance import record_provenance
from art.utils.retry import retry

__all__ = [
    "format_message",
    "get_model_step",
    "iterate_dataset",
    "limit_concurrency",
    "log_http_errors",
    "record_provenance",
    "retry",
]
