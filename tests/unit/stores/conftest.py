"""Makes pytest rewrite the assertions of the contract, which is not a test file."""

import pytest

pytest.register_assert_rewrite("store_contract")
