# SPDX-License-Identifier: Apache-2.0

"""Write the free capacity of each GPU to Placement without the GPU's lock.

Each write has a thread. The writes of one GPU follow each other, and each
reads the free capacity when it begins, so that the newest state wins. A bind
waits for the write, because what no longer fits has to be closed before Cyborg
learns that the bind is done. But the bind waits only for a short time, and not
at all while Placement is known not to answer. Only if no thread can be
started, the caller writes.
"""

from __future__ import annotations

import math
import threading
import time
import urllib.parse
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

from oslo_concurrency import lockutils
from oslo_log import log as logging

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.host import deadline
from cyborg_gpu_driver.host.snapshot import model

LOG = logging.getLogger(__name__)

_BIND_SECONDS = 5.0
"""How long a bind waits for all writes that it causes."""
_REPORT_SECONDS = 30.0
"""How long a report waits for all GPUs together."""


class Publisher:
    """Keeps the providers of GPUs in Placement up to date.

    :param write: called with a GPU's address to write the inventories of its
        providers. For a report it also gets the providers' generations, and
        corrects what other clients have written (:mod:`.reserved`). It takes
        no lock of a GPU.
    :param seconds: how long a bind waits.
    """

    def __init__(self, write: Callable[[model.PciAddress,
                                        Mapping[str, int] | None], None],
                 seconds: float = _BIND_SECONDS):
        self._write = write
        self._seconds = seconds
        self._turns = lockutils.Semaphores()
        """One for each GPU."""
        self._unwritten: type[Exception] | None = None
        """The kind of the error that prevents writes to Placement."""

    def ask(self, *addresses: model.PciAddress) -> None:
        """Request writes of the state of GPUs, and return at once."""
        for address in addresses:
            self._ask(address)

    def publish(self, *addresses: model.PciAddress) -> None:
        """Write what a bind or unbind has changed. Never raises.

        The caller must not hold a lock of the GPUs.
        """
        writings = [self._ask(address) for address in addresses]
        begun = time.monotonic()
        for writing in writings:
            if self._unwritten is None and not writing.ended.wait(
                    max(0.0, begun + self._seconds - time.monotonic())):
                self.say(TimeoutError(f'it has not answered within '
                                      f'{self._seconds:g} s'))

    def settle(self, address: model.PciAddress) -> bool:
        """Write a GPU's state, and wait for it and for all earlier writes.

        Waits even while Placement is known not to answer.

        :returns: whether the state is written, so that no older state can be
            written any more.
        """
        writing = self._ask(address)
        return writing.ended.wait(self._seconds) and writing.error is None

    def enforce(self, addresses: Iterable[model.PciAddress],
                generations: Mapping[str, int]) -> bool:
        """Correct the providers of GPUs one by one. Never raises.

        If one GPU cannot be written, the others are still written.

        :param generations: see :meth:`.reserved.ReservedWriter.enforce`.
        :returns: whether all GPUs are written.
        """
        end = time.monotonic() + _REPORT_SECONDS
        complete = True
        for address in addresses:
            writing = self._ask(address, generations)
            if not writing.ended.wait(max(0.0, end - time.monotonic())):
                self.say(TimeoutError('it has not answered within '
                                      f'{_REPORT_SECONDS:g} s'))
                return False
            complete = complete and writing.error is None
        return complete

    def say(self, error: Exception) -> None:
        """Log why Placement cannot be written, if the kind of error is new.

        The texts are not compared, because they name different requests.
        """
        if self._unwritten is not type(error):
            self._unwritten = type(error)
            LOG.warning('The free capacity of the GPUs cannot be written to '
                        'Placement: %s. Each report tries again.',
                        exception.steady(error))

    def recovered(self) -> None:
        """Let binds wait for Placement again: a report has written all."""
        self._unwritten = None

    def _ask(self, address: model.PciAddress,
             generations: Mapping[str, int] | None = None) -> _Writing:
        writing = _Writing()
        deadline.begin_thread(self._run, address, generations, writing,
                              name=f'the free capacity of GPU {address}')
        return writing

    def _run(self, address: model.PciAddress,
             generations: Mapping[str, int] | None, writing: _Writing
             ) -> None:
        with self._turns.get(str(address)):
            try:
                self._write(address, generations)
            except Exception as error:
                writing.error = error
                self.say(error)
            finally:
                writing.ended.set()


class _Writing:
    """One writing of a GPU's state."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.error: Exception | None = None


# Read this host's providers from Placement.

VERSION = '1.26'
"""The first version that takes and shows ``reserved`` equal to ``total``."""
_TREE_VERSION = '1.14'
"""The first version with ``in_tree``."""
_NUMBERS = ('resource_provider_generation', 'total', 'reserved')
_MEMBERS = 8
"""How many providers to try to find the tree: some may be missing."""


class ProviderTree:
    """The tree of providers below the compute node.

    :param client: makes Cyborg's placement client or a similar one. Called
        once, at the first use: each new client logs in to keystone.
    """

    def __init__(self, client: Callable[[], Any]):
        self._make_client = client
        self._client = None
        self._root: str | None = None
        self._latency = math.inf
        self._unused: dict[str, int] = {}
        """Generation in which a provider had no allocation."""

    @property
    def latency(self) -> float:
        """Seconds of the fastest answer so far; inf before the first.

        The fastest answer depends least on how busy this process was.
        """
        return self._latency

    @property
    def client(self) -> Any:
        """The client, for writes."""
        if self._client is None:
            self._client = self._make_client()
        return self._client

    def get(self, url: str, version: str = VERSION) -> Any:
        """The body of a response; None for status 404.

        :raises PlacementRefused: for any other status than 200 and 404, and
            as :func:`content`.
        """
        client, begun = self.client, time.monotonic()
        response = client.get(url, version=version)
        self._latency = min(self._latency, time.monotonic() - begun)
        if response.status_code == 404:
            return None
        if response.status_code != 200:
            raise exception.PlacementRefused(
                what=f'GET {url}', code=response.status_code,
                text=response.text)
        return content(response, f'GET {url}')

    def usages(self, provider: str, generation: int | None = None
               ) -> dict[str, int] | None:
        """The used amount of each class; None without such a provider.

        Each new allocation changes its provider's generation. So an unused
        provider is asked only once.

        :param generation: of the provider, if it is known.
        """
        if generation is not None and self._unused.get(
                provider) == generation:
            return {}
        found = self.get(f'/resource_providers/{provider}/usages')
        if found is None:
            return None
        if generation is not None and not any(found['usages'].values()):
            self._unused[provider] = generation
        return found['usages']

    def inventories(self, provider: str) -> dict[str, dict[str, Any]]:
        """The inventory of each class; empty without such a provider."""
        found = self.get(f'/resource_providers/{provider}/inventories')
        return {} if found is None else found['inventories']

    def members(self, provider: str) -> list[dict[str, Any]]:
        """All providers in the tree of a provider (UUID)."""
        return self.get(f'/resource_providers?in_tree={provider}',
                        _TREE_VERSION)['resource_providers']

    def of_host(self, hostname: str) -> list[dict[str, Any]]:
        """All providers in the tree of a compute node; empty if it has none.
        """
        name = urllib.parse.quote(hostname, safe='')
        roots = self.get(f'/resource_providers?name={name}'
                         )['resource_providers']
        return self.members(roots[0]['uuid']) if roots else []

    def generations(self, providers: Sequence[str]) -> dict[str, int]:
        """Generation of each provider of this host's tree, in one request.

        Any member finds the tree: the root once it is known, and one of
        ``providers`` before that. Some of those may be missing.

        :param providers: UUIDs of the driver's own providers.
        """
        for member in ([self._root] if self._root else providers[:_MEMBERS]):
            tree = self.members(member)
            if tree:
                self._root = tree[0]['root_provider_uuid']
                return {item['uuid']: item['generation'] for item in tree}
        self._root = None
        return {}


def content(response: Any, what: str) -> dict[str, Any]:
    """The body of a response with status 200.

    A proxy may answer for Placement. What makes no sense must count neither
    as missing nor as unused.

    :param what: the request, for people.
    :raises PlacementRefused: if it is no object, or has a text for a number.
    :raises ValueError: if it is not JSON.
    """
    body = response.json()
    if not isinstance(body, dict) or not all(
            isinstance(number, int) for number in (
                *(body[name] for name in _NUMBERS if name in body),
                *(body.get('usages') or {}).values())):
        raise exception.PlacementRefused(
            what=what, code=response.status_code, text=response.text)
    return body
