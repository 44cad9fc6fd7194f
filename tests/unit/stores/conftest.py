"""The contract is not a test file, but its assertions should show values too."""

import pytest

pytest.register_assert_rewrite("store_contract")
