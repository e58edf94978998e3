# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""Draws a heat map as PNG, with Pillow (the extra ``png``)."""

from __future__ import annotations

import io

from cyborg_gpu_driver import exception
from cyborg_gpu_driver.interference import heat_map

_SCALES = (2, 1)
"""Pixels of the PNG for each pixel of the picture: two, so that text is sharp,
unless the PNG would be too large."""
_PIXELS_MOST = 64_000_000
"""Pillow warns of larger pictures when it reads them
(``Image.MAX_IMAGE_PIXELS`` is about 89 million). The picture of 64
applications has 46 million."""
_ANCHORS = {'start': 'ls', 'middle': 'ms', 'end': 'rs'}
"""Pillow's names for positions on the baseline ("Text anchors")."""


def check() -> None:
    """Check whether PNG can be written.

    :raises InvalidValue: if Pillow is missing, or if it cannot draw text
        because it was built without FreeType. The error names the extra.
    """
    try:
        from PIL import ImageFont
        ImageFont.load_default(heat_map.FONT_SIZE)
    except ImportError as error:
        raise exception.InvalidValue(
            what='picture format', value='PNG',
            expected=f'it needs Pillow ({error}); install '
                     '"cyborg_gpu_driver[png]", or choose a name that ends '
                     'in .svg') from error


def encode(picture: heat_map.Picture) -> bytes:
    """Return the content of a PNG file.

    :raises InvalidValue: without Pillow, or if the picture is too large.
    """
    check()
    from PIL import Image
    from PIL import ImageDraw
    from PIL import ImageFont

    scale = _scale(picture)
    font = ImageFont.load_default(heat_map.FONT_SIZE * scale)
    image = Image.new('RGB', (picture.width * scale, picture.height * scale),
                      'white')
    canvas = ImageDraw.Draw(image)
    for part in picture.parts:
        x, y = part.x * scale, part.y * scale
        if isinstance(part, heat_map.Box):
            # The second corner is part of the box (ImageDraw.rectangle).
            canvas.rectangle((x, y, x + part.width * scale - 1,
                              y + part.height * scale - 1), fill=part.fill)
        else:
            canvas.text((x, y), part.text, fill=part.fill, font=font,
                        anchor=_ANCHORS[part.anchor])
    content = io.BytesIO()
    image.save(content, 'PNG')
    return content.getvalue()


def _scale(picture):
    for scale in _SCALES:
        if picture.width * picture.height * scale ** 2 <= _PIXELS_MOST:
            return scale
    raise exception.InvalidValue(
        what='PNG of', value=f'{picture.width} x {picture.height} pixels',
        expected=f'expected at most {_PIXELS_MOST} pixels; choose a name '
                 'that ends in .svg')
