#!/bin/sh
# Counts the changed lines of a diff.
grep -c "^[+-]"
