#!/bin/bash
# Builds the images of a release into DIRECTORY: image-NAME-VERSION-ARCHITECTURE.tar. Called by `make dist`.
#   [IMAGES='amd64 arm64'] deploy/dist-images.sh DIRECTORY
#
# IMAGES lists the architectures; `none` builds no images. By default it is this machine's architecture, and a machine
# that cannot build images gets a message instead.
set -euo pipefail
directory=$(realpath "$1")
cd "$(dirname "$(realpath "$0")")/.."

case $(uname -m) in x86_64) own=amd64 ;; aarch64) own=arm64 ;; *) own=$(uname -m) ;; esac
if [ -z "${IMAGES:-}" ]; then
  missing=()
  [ "$(id -u)" = 0 ] || missing+=(root)
  for program in buildah mmdebstrap dpkg cc; do command -v "$program" >/dev/null || missing+=("$program"); done
  if [ ${#missing[@]} -gt 0 ]; then
    echo "dist has no images: they need ${missing[*]} (IMAGES=none hides this message, IMAGES=$own makes it an error)" >&2
    exit
  fi
fi

version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' src/plugwright/version.py)
for architecture in ${IMAGES:-$own}; do
  [ "$architecture" != none ] || continue
  deploy/build-image.sh --base debian --arch "$architecture" >/dev/null
  for image in plugwright plugwright-tools; do
    ln -f "build/image/$image.tar" "$directory/image-$image-$version-$architecture.tar"
  done
done
