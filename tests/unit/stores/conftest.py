"""The contract is no test file, but its assertions tell as much as those of one."""

import pytest

pytest.register_assert_rewrite("store_contract")
