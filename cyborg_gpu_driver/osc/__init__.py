# SPDX-License-Identifier: Apache-2.0

"""``openstack gpu``: the GPUs of a whole cloud, for its operators."""
