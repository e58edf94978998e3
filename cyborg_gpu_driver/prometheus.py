# SPDX-License-Identifier: Apache-2.0

"""Ask Prometheus an instant query, within bounds of time and size."""

from __future__ import annotations

import json
import math
import time
from typing import Any

import requests

from cyborg_gpu_driver import exception

_PATH = '/api/v1/query'
_SIZE_MOST = 16 << 20
"""Maximum size of an answer in bytes: about 100,000 GPUs."""
_CHUNK = 1 << 16


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
    if isinstance(document, dict) and document.get('status') == 'error':
        raise ValueError(f'{document.get("errorType")}: '
                         f'{document.get("error")}')
    try:
        if (document['status'] != 'success'
                or document['data']['resultType'] != 'vector'):
            raise ValueError('no vector')
        return dict(_item(item, labels)
                    for item in document['data']['result'])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError('no vector of labels and numbers: '
                         + repr(document)[:100]) from error


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
    """Return the parsed answer; stop reading one that is late or too large."""
    end = time.monotonic() + seconds
    with requests.get(url, params=parameters, stream=True, timeout=seconds,
                      allow_redirects=False) as response:
        content = bytearray()
        for chunk in response.iter_content(_CHUNK):
            content += chunk
            if len(content) > _SIZE_MOST:
                raise ValueError(f'more than {_SIZE_MOST} bytes')
            if time.monotonic() > end:
                raise ValueError(f'no answer in {seconds:g} s')
    try:
        document = json.loads(content)
    except ValueError:
        document = None
    # Prometheus explains in JSON why it refuses a query.
    explains = isinstance(document, dict) and document.get('status') == 'error'
    if document is None or (
            response.status_code != requests.codes.ok and not explains):
        raise ValueError(f'status {response.status_code}')
    return document
