#!/bin/bash
# Builds the images with buildah, where there is no Docker engine, and writes archives that `ctr images import` takes.
#   deploy/build-image.sh [--base IMAGE|debian] [--arch ARCH] [--suite trixie] [--output build/image] [plugwright] [plugwright-tools]
#
#   --base     the image to build on (default: the Dockerfile's). `debian` makes one from Debian packages with mmdebstrap:
#              no registry is needed then, only a Debian mirror and PyPI. It has no shell and no package manager.
#   --arch     amd64 or arm64 (default: this machine's). Another one needs its emulation (Debian: qemu-user-static).
#   --suite    which Debian                                                            (default trixie)
#   --mirror   which mirror, for example a snapshot                                    (default mmdebstrap's)
#   --output   where the archives go, and what is kept between builds                  (default build/image)
#
# Root is needed for mmdebstrap and buildah's chroot isolation. STORAGE_DRIVER is vfs, which works everywhere.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."

base='' suite=trixie mirror='' output=build/image images=()
case $(uname -m) in x86_64) own=amd64 ;; aarch64) own=arm64 ;; *) own=$(uname -m) ;; esac
arch=$own
while [ $# -gt 0 ]; do
  case $1 in
  --base) base=$2; shift 2 ;;
  --arch) arch=$2; shift 2 ;;
  --suite) suite=$2; shift 2 ;;
  --mirror) mirror=$2; shift 2 ;;
  --output) output=$2; shift 2 ;;
  plugwright | plugwright-tools) images+=("$1"); shift ;;
  *) sed -n '2,12s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
done
[ ${#images[@]} -gt 0 ] || images=(plugwright plugwright-tools)
mkdir -p "$output"; output=$(realpath "$output")
export STORAGE_DRIVER=${STORAGE_DRIVER:-vfs} BUILDAH_ISOLATION=${BUILDAH_ISOLATION:-chroot}

need() { # need PROGRAM…
  local program missing=()
  for program in "$@"; do command -v "$program" >/dev/null || missing+=("$program"); done
  [ ${#missing[@]} -eq 0 ] || { echo "build-image.sh needs ${missing[*]} (Debian: apt-get install ${missing[*]})" >&2; exit 1; }
}

builder() { buildah --root "$output/storage" --runroot "$output/run" "$@"; }

import() { # import ARCHIVE NAME: a root file system as an image of one layer
  local container; container=$(builder from "${foreign[@]}" scratch)
  builder add --quiet "$container" "$1" / >/dev/null
  builder config --env PATH=/usr/local/bin:/usr/bin:/bin "$container"
  builder commit --quiet --rm "$container" "$2" >/dev/null
}

debian() { # two bases: one to build in, one to run, which is the same without shell, package manager and their friends
  local name=$debian_image root=$output/root
  base=$name builder=$name-build
  builder inspect --type image "$base" >/dev/null 2>&1 && return
  echo "making a base of Debian $suite" >&2
  mmdebstrap --quiet "${foreign[@]/#--arch/--architectures}" --variant=essential --include=python3 --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-include=/usr/share/doc/*/copyright' "$suite" "$output/base.tar" ${mirror:+"$mirror"} </dev/null
  import "$output/base.tar" "$builder"
  rm -rf "$root"; mkdir "$root"; tar -C "$root" --exclude=./dev -xf "$output/base.tar"
  strip "$root"
  tar -C "$root" -cf "$output/base.tar" .
  import "$output/base.tar" "$base"
  rm -rf "$root" "$output/base.tar"
}

strip() { # removes what only a person or a package needs; dpkg's records of the rest stay, for those who list what is inside
  local tools='bash bsdutils debconf debianutils diffutils findutils gzip hostname init-system-helpers login login.defs mawk
    mount ncurses-base ncurses-bin passwd perl-base sysvinit-utils tar util-linux util-linux-extra'
  local last='coreutils dash dpkg grep sed' # what the removing of others calls
  # Unwilling on purpose: these are the packages that Debian calls essential, and the last ones miss the shell at the end.
  for group in "$tools" "$last"; do # shellcheck disable=SC2086
    dpkg --root="$1" --force-all --purge $group >"$output/strip.log" 2>&1 || true
  done
  rm -rf "$1"/var/cache/* "$1"/var/log/* "$1"/var/lib/apt "$1"/usr/lib/*/gconv
  ! [ -e "$1/bin/sh" ] || { echo "the base still has a shell, see $output/strip.log" >&2; exit 1; }
}

build() { # build IMAGE
  local extras=''; [ "$1" = plugwright ] || extras='cluster metrics nvidia'
  local arguments=(--build-arg EXTRAS="$extras" --build-arg VERSION="$version" --build-arg REVISION="$revision")
  [ -z "$base" ] || arguments+=(--build-arg BASE="$base" --build-arg BUILDER="${builder:-$base}")
  [ -z "${builder:-}" ] || arguments+=(--pull-never)
  # The network may have a certificate of its own, and a base none at all: this machine's are seen while building.
  local certificates=${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}
  [ ! -f "$certificates" ] || arguments+=(--volume "$certificates:/run/certificates.crt:ro" --build-arg SSL_CERT_FILE=/run/certificates.crt)
  echo "building localhost/$1:$version" >&2
  builder bud --quiet --layers=false --format docker --file deploy/Dockerfile --ignorefile deploy/Dockerfile.dockerignore \
    "${foreign[@]}" --tag "localhost/$1:$version" "${arguments[@]}" . >/dev/null
  echo "writing $output/$1.tar" >&2
  rm -f "$output/$1.tar"
  builder push --quiet "localhost/$1:$version" "docker-archive:$output/$1.tar:localhost/$1:$version"
  echo "localhost/$1:$version $output/$1.tar"
}

parts=(cdi-hook vgpu) compiler=cc foreign=() debian_image=localhost/plugwright-debian:$suite
if [ "$arch" != "$own" ]; then # images of two architectures have one name: the later one replaces the other in the storage
  [ "$arch" = arm64 ] || { echo "build-image.sh builds for arm64 on other machines, not for $arch" >&2; exit 1; }
  parts=(arm64) compiler=aarch64-linux-gnu-gcc foreign=("--arch=$arch") debian_image+=-$arch
fi
needed=(buildah) tools=
case " ${images[*]} " in *" plugwright-tools "*) needed+=(make "$compiler") tools=yes ;; esac
if [ "$base" = debian ] && ! builder inspect --type image "$debian_image" >/dev/null 2>&1; then
  needed+=(mmdebstrap dpkg)
  [ "$arch" = "$own" ] || needed+=(arch-test)
fi
need "${needed[@]}"
[ -z "$tools" ] || make --no-print-directory -s "${parts[@]}"
version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' src/plugwright/version.py)
revision=$(git rev-parse HEAD 2>/dev/null || true)
[ "$base" != debian ] || debian
for image in "${images[@]}"; do build "$image"; done
