"""The lab as a static site: an index by question, a page a run, the ledgers; drawn without a network."""

from labkit.lab.publish.build import Report, publish, publish_run

__all__ = ["Report", "publish", "publish_run"]
