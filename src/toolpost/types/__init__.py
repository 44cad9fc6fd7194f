"""The vocabulary of all five revisions: one struct per noun, all importable from here.

Structs only: `toolpost.protocol` knows which message is allowed when, and how it is encoded.
"""

from toolpost.types import (
    base,
    client_requests,
    content,
    initialize,
    notifications,
    prompts,
    resources,
    skills,
    tools,
)
from toolpost.types.base import *  # noqa: F403 - each module lists its public names in `__all__`
from toolpost.types.client_requests import *  # noqa: F403 - as above
from toolpost.types.content import *  # noqa: F403 - as above
from toolpost.types.initialize import *  # noqa: F403 - as above
from toolpost.types.notifications import *  # noqa: F403 - as above
from toolpost.types.prompts import *  # noqa: F403 - as above
from toolpost.types.resources import *  # noqa: F403 - as above
from toolpost.types.skills import *  # noqa: F403 - as above
from toolpost.types.tools import *  # noqa: F403 - as above

__all__: list[str] = []
__all__ += base.__all__
__all__ += client_requests.__all__
__all__ += content.__all__
__all__ += initialize.__all__
__all__ += notifications.__all__
__all__ += prompts.__all__
__all__ += resources.__all__
__all__ += skills.__all__
__all__ += tools.__all__
