#!/bin/sh
# Runs a test of this folder with a Python that has the packages of scripts/requirements.txt.
# Usage: with_python.sh TEST.py ARGUMENT...
python=${REPORT_PYTHON:-python3}
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "skipped: $python is no Python 3.11 or newer"
    exit 77
fi
test=$(dirname "$0")/$1
shift
exec "$python" "$test" "$@"
