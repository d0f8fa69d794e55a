# A Debian 12 in a folder, and commands in it. Sourced by tests/package/run.
#
# Needs root, debootstrap and chroot, and no other privilege: where mounts are not allowed, there is no
# /proc inside and the toolchains are copied instead of bound. Mounts live in a mount namespace of
# one command, so nothing has to be undone. How apt, pip, cargo and go reach their registries is taken
# from this machine at run time: files of /etc, and environment variables.

# make_base FOLDER: a minimal Debian 12, made once.
make_base() {
  local base=$1 mirror
  [ ! -e "$base/made" ] || return 0
  rm -rf "$base"
  mkdir -p "$base"
  mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.sources /etc/apt/sources.list.d/*.list 2>/dev/null |
    grep -oE '^(URIs: *|deb +(\[[^]]*\] *)?)[^ ]+' | grep -oE '[a-z+]+:[^ ]+$' | head -n 1)
  debootstrap --variant=minbase bookworm "$base" "${mirror:-https://deb.debian.org/debian}"
  chroot "$base" useradd --create-home --shell /bin/bash newcomer
  touch "$base/made"
}

# make_root BASE FOLDER ARCHIVES: a fresh copy of the base that reaches the registries as this machine
# does; Debian's packages already fetched are in ARCHIVES.
make_root() {
  local base=$1 root=$2 archives=$3 file
  rm -rf "$root"
  cp -a "$base" "$root"
  rm -rf "$root/etc/apt/sources.list" "$root/etc/apt/sources.list.d"
  mkdir -p "$root/etc/apt/sources.list.d" "$root/usr/share/keyrings" "$archives"
  for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.sources /etc/apt/sources.list.d/*.list \
    /etc/apt/auth.conf /etc/apt/auth.conf.d/* /etc/apt/apt.conf /etc/apt/apt.conf.d/99* \
    /usr/share/keyrings/*.gpg /etc/pip.conf /etc/resolv.conf /etc/hosts; do
    if [ -f "$file" ]; then
      mkdir -p "$root$(dirname "$file")"
      cp -L "$file" "$root$file"
    fi
  done
  for file in "${CARGO_HOME:-$HOME/.cargo}"/config.toml "${CARGO_HOME:-$HOME/.cargo}"/config; do
    if [ -f "$file" ]; then
      mkdir -p "$root/home/newcomer/.cargo"
      cp -L "$file" "$root/home/newcomer/.cargo/"
    fi
  done
  # Beside Debian's own, which the package ca-certificates writes.
  if [ -f /etc/ssl/certs/ca-certificates.crt ]; then
    cp -L /etc/ssl/certs/ca-certificates.crt "$root/opt/certificates.crt"
  fi
  cp "$archives"/*.deb "$root/var/cache/apt/archives/" 2>/dev/null || true
}

# keep_archives FOLDER ARCHIVES: for the next run.
keep_archives() {
  cp -n "$1"/var/cache/apt/archives/*.deb "$2/" 2>/dev/null || true
}

# Variables that say where registries are, and nothing else of this environment.
registry_environment() {
  env | grep -E '^(PIP_(INDEX_URL|EXTRA_INDEX_URL|TRUSTED_HOST|PROXY|DEFAULT_TIMEOUT)|CARGO_(REGISTRIES|SOURCE|NET)_[A-Z_]+|https?_proxy|HTTPS?_PROXY|no_proxy|NO_PROXY)=' || true
  if command -v go >/dev/null; then
    go env GOPROXY GOSUMDB GONOSUMDB GOPRIVATE GONOPROXY |
      paste -d= <(printf '%s\n' GOPROXY GOSUMDB GONOSUMDB GOPRIVATE GONOPROXY) -
  fi
}

# inside ROOT USER: runs the commands of standard input. BINDINGS has lines "there=here": folders of
# this machine that are needed inside.
inside() {
  local root=$1 user=$2 variables
  mapfile -t variables < <(registry_environment)
  if [ -f "$root/opt/certificates.crt" ]; then
    variables+=({SSL_CERT_FILE,PIP_CERT,CARGO_HTTP_CAINFO}=/opt/certificates.crt)
  fi
  variables+=(HOME="$([ "$user" = root ] && echo /root || echo "/home/$user")" LANG=C.UTF-8
    DEBIAN_FRONTEND=noninteractive GOTOOLCHAIN=local GOFLAGS=-buildvcs=false
    PATH=/opt/rust/bin:/opt/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin)
  # shellcheck disable=SC2016 # expanded by the inner shell
  unshare --mount --propagation private bash -c '
    root=$1 user=$2
    shift 2
    mount -t proc proc "$root/proc" 2>/dev/null || mount --rbind /proc "$root/proc" 2>/dev/null || true
    [ -c "$root/dev/null" ] || mount --rbind /dev "$root/dev"
    while IFS== read -r there here; do
      [ -n "$there" ] || continue
      mkdir -p "$root$there"
      if [ -z "$(ls "$root$there")" ]; then
        mount --bind "$here" "$root$there" 2>/dev/null || cp -a "$here/." "$root$there"
      fi
    done <<<"$BINDINGS"
    cd / && exec chroot --userspec="$user" "$root" env -i "$@" bash -eo pipefail -s
  ' bash "$root" "$user" "${variables[@]}"
}
