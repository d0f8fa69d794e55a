"""Who runs the files of a job: this process, Dask or Ray. Each gives outcomes in the order in which they come."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from typing import Any

from .._core import integer
from .._extra import missing

Engine = Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]


def here(function: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
    return map(function, tasks)


def _check_workers(workers: int) -> None:
    if integer(workers, "workers") < 1:
        raise ValueError(f"workers is {workers}, and must be positive: nobody would do the job")


def on_dask(client: Any = None, *, workers: int = 2) -> Engine:
    """For engine=: a client of dask.distributed; without it a cluster of this machine for the job. Its processes
    import the program anew: without a client, a script guards its call of move(), as one of multiprocessing does."""
    _check_workers(workers)
    try:
        from distributed import Client, as_completed
    except ModuleNotFoundError as e:
        raise ModuleNotFoundError(missing("a job on Dask", e, "dask"), name=e.name) from None

    def run(function: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
        own = Client(n_workers=workers, threads_per_worker=1, dashboard_address=None) if client is None else None
        with own or nullcontext(client) as used:
            # pure: equal tasks of another job are not these, whose files may have changed.
            futures = used.map(function, list(tasks), pure=False)
            for future in as_completed(futures):
                yield future.result()
            used.cancel(futures)  # nobody asks for them again

    return run


def on_ray(address: str | None = None, *, workers: int = 2) -> Engine:
    """For engine=: a cluster of Ray at this address, or the one that the program is connected to; without either
    one of this machine for the job."""
    _check_workers(workers)
    try:
        import ray
    except ModuleNotFoundError as e:
        raise ModuleNotFoundError(missing("a job on Ray", e, "ray"), name=e.name) from None

    def run(function: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
        own = not ray.is_initialized()
        if own and address is None:
            ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False)
        elif own:
            ray.init(address)
        try:
            remote = ray.remote(function)
            left = [remote.remote(task) for task in tasks]
            while left:
                done, left = ray.wait(left)
                yield from ray.get(done)
        finally:
            if own:
                ray.shutdown()

    return run
