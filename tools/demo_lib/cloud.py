# SPDX-License-Identifier: Apache-2.0


"""A cloud of one compute node: Placement, Cyborg and Nova's part."""

from __future__ import annotations

import os

from demo_lib import client
from demo_lib import compute_events
from demo_lib import configfile
from demo_lib import cyborg_service
from demo_lib import database
from demo_lib import nova_part
from demo_lib import placement_service


class Cloud:
    """The services, started in order; :meth:`stop` stops all of them.

    :param directory: an empty directory for databases, configuration and
        logs.
    :param templates: databases to copy.
    :param host: name of the compute node.
    :param drivers: ``[agent] enabled_drivers``.
    :param overrides: additional sections of Cyborg's configuration file.
    :param log: whether to set up logging from that file.
    """

    def __init__(self, directory: str, templates: database.Templates,
                 host: str, drivers: list[str],
                 overrides: configfile.Sections | None = None,
                 log: bool = False):
        self.directory = directory
        self.host = host
        self._started = []
        try:
            self._start(templates, drivers, overrides or {}, log)
        except BaseException:
            self.stop()
            raise

    def _start(self, templates, drivers, overrides, log):
        cyborg_database, placement_database = templates.copy(self.directory)
        self.placement_service = self._own(
            placement_service.PlacementService(
                self.directory, placement_database))
        self.events = self._own(compute_events.ComputeEvents())
        self.config_path = configfile.write(
            os.path.join(self.directory, 'cyborg.conf'),
            cyborg_service.configuration(
                self.directory, cyborg_database, self.host,
                self.placement_service.url, self.events.url, drivers),
            overrides)
        self.cyborg_service = self._own(cyborg_service.CyborgService(
            self.config_path, cyborg_database, log))
        self.cyborg_service.start()
        self.placement = client.Placement(self.placement_service.url)
        self.cyborg = client.Cyborg(self.cyborg_service.url)
        self.nova = nova_part.NovaPart(
            self.placement, self.cyborg, self.events, self.host)
        self.root_provider = self.nova.create_compute_node()
        self.cyborg_service.start_agent()

    @property
    def conductor(self):
        """Cyborg's ``ConductorManager``."""
        return self.cyborg_service.conductor

    @property
    def agent(self):
        """Cyborg's ``AgentManager``."""
        return self.cyborg_service.agent

    def report(self) -> None:
        """Let the agent discover and report now; return when it has."""
        self.cyborg_service.report()

    def handles_in_use(self) -> list[str]:
        """Return the UUIDs of the attach handles that Cyborg has in use."""
        return self.cyborg_service.handles_in_use()

    def stop(self) -> None:
        """Stop the services, the last one first."""
        while self._started:
            self._started.pop().stop()

    def _own(self, service):
        self._started.append(service)
        return service
