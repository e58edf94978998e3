# SPDX-License-Identifier: Apache-2.0

"""Ask Prometheus an instant query."""

from __future__ import annotations

import math
from typing import Any

import requests

from cyborg_gpu_driver import exception

_PATH = '/api/v1/query'
_SHOWN = 200


def query(url: str, text: str, labels: tuple[str, ...], seconds: float,
          at: float | None = None) -> dict[tuple[str, ...], float]:
    """Return the values of an instant query, by those of some labels.

    :param at: the moment of the query, in seconds of the epoch; None for now.
    """
    try:
        return parse(_get(url.rstrip('/') + _PATH, seconds, {
            'query': text, **({} if at is None else {'time': str(at)})}),
            labels)
    except (requests.RequestException, ValueError, RecursionError) as error:
        raise exception.InvalidValue(
            what='URL of Prometheus', value=url,
            expected=f'it does not answer the query: {error}') from error


def parse(document: Any, labels: tuple[str, ...]
          ) -> dict[tuple[str, ...], float]:
    """Return the values of an answer, by those of some labels.

    Prometheus' HTTP API, "Instant queries": ``{"status": "success", "data":
    {"resultType": "vector", "result": [{"metric": {...}, "value": [TIME,
    "0.5"]}]}}``. A series without a label has the empty value for it.
    """
    try:
        if (document['status'] != 'success'
                or document['data']['resultType'] != 'vector'):
            raise ValueError('no vector')
        return dict(_item(item, labels)
                    for item in document['data']['result'])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError('no vector of labels and numbers: '
                         + repr(document)[:_SHOWN]) from error


def _item(item: Any, labels: tuple[str, ...]
          ) -> tuple[tuple[str, ...], float]:
    values = tuple(item['metric'].get(label, '') for label in labels)
    _time, text = item['value']
    number = float(text)
    if (not isinstance(text, str) or math.isnan(number)
            or not all(isinstance(value, str) for value in values)):
        raise ValueError('neither texts nor a number')
    return values, number


def _get(url: str, seconds: float, parameters: dict[str, str]) -> Any:
    response = requests.get(url, params=parameters, timeout=seconds,
                            allow_redirects=False)
    if response.status_code != requests.codes.ok:
        # Prometheus explains in its answer why it refuses a query.
        raise ValueError(f'status {response.status_code} '
                         f'{response.text[:_SHOWN]}')
    return response.json()
