# SPDX-License-Identifier: Apache-2.0


"""The released Placement, in this process, on loopback."""

from __future__ import annotations

import os

from oslo_config import cfg
from placement import conf as placement_conf
from placement import db_api
from placement import deploy
from placement import policy

from demo_lib import configfile
from demo_lib import database
from demo_lib import httpd


class PlacementService:
    """Placement's WSGI application with ``auth_strategy = noauth2``.

    :param directory: the directory for its configuration file.
    :param database_path: a copy of the template.
    """

    def __init__(self, directory: str, database_path: str):
        path = configfile.write(
            os.path.join(directory, 'placement.conf'),
            {'api': {'auth_strategy': 'noauth2'},
             'placement_database': {
                 'connection': database.url(database_path)}})
        config = cfg.ConfigOpts()
        placement_conf.register_opts(config)
        config([], project='placement', default_config_files=[path])
        self._database = database.Attached(
            db_api.placement_context_manager, database_path)
        self._httpd = httpd.Httpd(deploy.loadapp(config))

    @property
    def url(self) -> str:
        return self._httpd.url

    def stop(self) -> None:
        """Stop serving, and release the database."""
        self._httpd.stop()
        self._database.detach()
        policy.reset()
