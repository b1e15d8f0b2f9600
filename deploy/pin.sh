#!/bin/sh
# Writes anew what an operator installs, each file of each package by its hash: deploy/build.txt, requirements.txt and torch-cuda.txt.
# It takes the newest releases that go together; constraints of yours (pip freeze > tested.txt) keep those that you tested:
#     sh deploy/pin.sh [--constraints tested.txt]
# It needs uv. deploy/torch-cpu.txt is written by hand: pip download --no-deps --index-url INDEX torch==... torchvision==..., then pip hash.
set -eu
cd "$(dirname "$0")/.."
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
echo 'setuptools>=77' >"$folder/build.in"
pins() {
    uv pip compile --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --quiet "$@"
}
pins pyproject.toml "$folder/build.in" --extra swarm "$@" -o "$folder/all.txt"
# A package's lines are its name's and those of its hashes, which are indented.
part() { # 1: as a file of that name has it; 2: whether a package is in it
    { sed -n '/^# /p;/^# /!q' "deploy/$1"; awk "/^[a-z]/ { is_in = $2 } is_in" "$folder/all.txt"; } >"$folder/$1"
    mv "$folder/$1" "deploy/$1"
}
torch='(/^(torch|torchvision|triton|cuda-|nvidia-)/ && !/^nvidia-ml-py==/)'
part build.txt '/^setuptools==/'
part torch-cuda.txt "$torch"
part requirements.txt "!$torch"
