#!/usr/bin/env bash
# Run tests/gpu and the measurements with this folder's packages and the machine's Python: README.txt
# says how to call it.
set -uo pipefail
GPU_ALL_BEGAN=$(date +%s)
export GPU_ALL_BEGAN # the time of --all begins here
called_in=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")" || exit 1
PYTHON=${PYTHON:-python3}
wanted=$(<python-version)
found=$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])') || exit 1
if [ "$found" != "$wanted" ]; then
    echo "this bundle is for Python $wanted, and $PYTHON is $found: set PYTHON to another, or make" \
        "a bundle with .ci/gpu_bundle.py --python $found" >&2
    exit 1
fi

# Unpack the wheels, unless the same ones are unpacked already; this needs no pip.
sum=$(cat wheels/*.whl | sha256sum) || exit 1
if [ "$(cat site/.made 2>/dev/null)" != "$sum" ]; then
    rm -rf site site.new && mkdir site.new && "$PYTHON" -c 'import sys, zipfile
for wheel in sys.argv[1:]:
    zipfile.ZipFile(wheel).extractall("site.new")' wheels/*.whl &&
        echo "$sum" >site.new/.made && mv site.new site || exit 1
fi
export PYTHONPATH=$PWD/site${PYTHONPATH:+:$PYTHONPATH}
# Streams of one queue wait for each other, and torch makes more than CUDA has queues by default.
export CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-32}
[ "${1:-}" != --check ] || exec "$PYTHON" check.py --epoch
"$PYTHON" check.py || exit
# Plug-ins of the machine's own pytest may not work with the bundle's pytest.
export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1
if [ "${1:-}" = --all ]; then
    bundle=$PWD
    cd "$called_in" || exit 1 # where OUT is named from
    exec "$PYTHON" "$bundle/bench/gpu_all.py" "${@:2}"
fi
[ $# -gt 0 ] || set -- store
printf '\n== tests/gpu\n'
"$PYTHON" -m pytest -p asyncio -rs tests/gpu
tests=$?
printf '\n== bench/gpu.py\n'
"$PYTHON" bench/gpu.py "$@"
bench=$?
printf '\nexit status: tests/gpu %d, bench/gpu.py %d\n' "$tests" "$bench"
[ "$tests" -eq 0 ] || exit "$tests"
exit "$bench"
