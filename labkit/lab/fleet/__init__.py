"""One sweep on many machines: the home lab hands points to workers over dask.distributed, and judges what comes back."""
