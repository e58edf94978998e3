# SPDX-License-Identifier: Apache-2.0

"""``cyborg-gpu exporter``: metrics of this host for Prometheus."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import socketserver
import ssl
import sys
import threading

import prometheus_client
from cliff import command
from oslo_log import log as logging
from oslo_utils import netutils
from prometheus_client import registry as client_registry

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.cmd import main
from cyborg_gpu_driver.cmd import output
from cyborg_gpu_driver.conf import gpu as gpu_conf
from cyborg_gpu_driver.host import domains
from cyborg_gpu_driver.host import platform
from cyborg_gpu_driver.metrics import collect
from cyborg_gpu_driver.metrics import owners
from cyborg_gpu_driver.metrics import sampler

LOG = logging.getLogger(__name__)

_LISTEN = '127.0.0.1:9836'
_SUFFIX = '.prom'
_SECONDS = 30.0
"""Seconds that a client may take for one read or write."""


class Exporter(command.Command):
    """Serve the metrics of this host to Prometheus.

    The metrics show who has which GPU, vGPU or slice, what can still be
    created, which GPUs are unhealthy or disabled, and the state of
    cyborg-agent. The exporter reads the records below [gpu] state_path and
    needs no credentials. It opens GPUs only if --nvml is given, and never a
    GPU that is offered as a whole.
    """

    checks_options = False

    def get_parser(self, prog_name):
        parser = super().get_parser(prog_name)
        where = parser.add_mutually_exclusive_group()
        where.add_argument(
            '--listen', metavar='ADDRESS:PORT', default=_LISTEN,
            help='where to serve the metrics; an IPv6 address is in brackets, '
                 'and no address means all (default: %(default)s)')
        where.add_argument(
            '--textfile', metavar='FILE',
            help='write the metrics to FILE, whose name ends in .prom, for '
                 "node_exporter's textfile collector, and exit")
        parser.add_argument(
            '--nvml', action='store_true',
            help='add values of the hardware, such as utilisation, memory and '
                 'power; for hosts without dcgm-exporter')
        parser.add_argument(
            '--libvirt', action='store_true',
            help='ask libvirt on this host for the server, project and '
                 'flavor of what is assigned')
        parser.add_argument(
            '--certfile', metavar='FILE',
            help='serve with TLS, with this certificate')
        parser.add_argument(
            '--keyfile', metavar='FILE',
            help='key of --certfile, unless it is in the same file')
        parser.add_argument(
            '--client-cafile', metavar='FILE',
            help='serve only clients with a certificate of one of these '
                 'authorities')
        parser.add_argument(
            '--state-path', metavar='DIRECTORY',
            help='directory of the records (default: [gpu] state_path)')
        return parser

    def take_action(self, parsed_args):
        _check(parsed_args)
        conf = self.app.conf
        if parsed_args.state_path:
            conf.set_override('state_path', parsed_args.state_path,
                              group='gpu')
        state_path = gpu_conf.state_path(conf)
        samples = watch = None
        if parsed_args.nvml or parsed_args.libvirt:
            machine = platform.from_conf(conf)
        if parsed_args.nvml:
            samples = sampler.Sampler(machine, state_path)
        if parsed_args.libvirt:
            if not machine.simulated and not importlib.util.find_spec(
                    domains.MODULE):
                raise exception.InvalidValue(
                    what='--libvirt', value='set',
                    expected="needs libvirt's Python module (python3-libvirt, "
                             'or libvirt-python) in this environment')
            watch = owners.Watch(domains.DomainReader(machine.libvirt))
        registry = prometheus_client.CollectorRegistry()
        registry.register(collect.Collector(
            state_path, conf.host, main.version(), samples, watch))
        sources = [source for source in (samples, watch) if source]
        with contextlib.suppress(KeyboardInterrupt):
            if parsed_args.textfile:
                _write(parsed_args.textfile, registry, sources)
            else:
                _serve(parsed_args, registry, sources)


def _check(parsed_args):
    """Refuse options that would have no effect."""
    if parsed_args.textfile and parsed_args.certfile:
        raise exception.InvalidValue(
            what='--certfile', value=parsed_args.certfile,
            expected='it has no effect with --textfile, which serves nothing')
    if parsed_args.textfile and not parsed_args.textfile.endswith(_SUFFIX):
        raise exception.InvalidValue(
            what='--textfile', value=parsed_args.textfile,
            expected=f'expected a name that ends in {_SUFFIX}; '
                     'node_exporter reads no other')
    for option, value in (('--keyfile', parsed_args.keyfile),
                          ('--client-cafile', parsed_args.client_cafile)):
        if value and not parsed_args.certfile:
            raise exception.InvalidValue(what=option, value=value,
                                         expected='it needs --certfile')


def _serve(parsed_args, registry, sources):
    running, thread = start(
        parsed_args.listen, registry, parsed_args.certfile,
        parsed_args.keyfile, parsed_args.client_cafile)
    host, port = running.socket.getsockname()[:2]
    output.say(f'The metrics are served on {host}, port {port}.')
    sys.stderr.flush()
    for source in sources:
        source.start()
    with running:
        thread.join()


def start(listen: str, registry: client_registry.CollectorRegistry,
          certfile: str | None = None, keyfile: str | None = None,
          client_cafile: str | None = None
          ) -> tuple[socketserver.TCPServer, threading.Thread]:
    """Serve the metrics in a thread; each request has a thread of its own.

    :param listen: ADDRESS:PORT; port 0 takes any free port.
    :returns: the server and its thread.
    :raises InvalidValue: if the address or a file cannot be used.
    """
    host, port = address(listen)
    keyfile = keyfile or certfile
    for option, path in (('--certfile', certfile), ('--keyfile', keyfile),
                         ('--client-cafile', client_cafile)):
        try:
            if path is not None:
                open(path, 'rb').close()
        except OSError as error:
            raise exception.InvalidValue(
                what=option, value=path,
                expected=f'cannot be read: {error}') from error
    try:
        running, thread = prometheus_client.start_http_server(
            port, host or '0.0.0.0', registry, certfile, keyfile,
            client_cafile, client_auth_required=client_cafile is not None)
    except ssl.SSLError as error:
        raise exception.InvalidValue(
            what='--certfile', value=certfile,
            expected=f'cannot be used: {error}') from error
    except OSError as error:
        raise exception.InvalidValue(
            what='--listen', value=listen,
            expected=f'cannot be used: {error}') from error
    # Without these, a client that connects and sends nothing holds a thread
    # for ever; with TLS that is the thread that accepts connections.
    running.RequestHandlerClass.timeout = _SECONDS
    if certfile is not None:
        running.socket.do_handshake_on_connect = False
    running.handle_error = _note_failure
    return running, thread


def _note_failure(request, client_address):
    """Log a failure of a client at level debug: it is not an error."""
    LOG.debug('A client at %s failed: %s', client_address, sys.exc_info()[1])


def _write(path, registry, sources):
    """Write a new file under another name, then rename it."""
    for source in sources:
        source.round()
    try:
        prometheus_client.write_to_textfile(os.path.abspath(path), registry)
    except OSError as error:
        raise exception.InvalidValue(
            what='--textfile', value=path,
            expected=f'cannot be written: {error}') from error


def address(text: str) -> tuple[str, int]:
    """Return the host and the port of ``ADDRESS:PORT``."""
    try:
        host, port = netutils.parse_host_port(text)
    except ValueError:
        host, port = '', None
    if not netutils.is_valid_port(port):
        raise exception.InvalidValue(
            what='--listen', value=text,
            expected='expected ADDRESS:PORT, such as 127.0.0.1:9836 or '
                     '[::1]:9836')
    return host, port
