# SPDX-License-Identifier: Apache-2.0


# Make Nova use native threads before any module of Nova or of this library
# imports eventlet.
import importlib
import os

os.environ['OS_NOVA_DISABLE_EVENTLET_PATCHING'] = 'true'
importlib.import_module('nova.monkey_patch').patch()
