#!/usr/bin/env bash
# Private Postgres and Redis for tests and benchmarks, on free ports of 127.0.0.1, in a folder of their own.
#
#   services.sh start [--durable] DIR   starts both and prints `export` lines with their URLs
#   services.sh again DIR               starts Postgres again, as it was, after a test has killed it
#   services.sh stop DIR                stops both and removes DIR
#
# By default Postgres does not wait for the disk, since nothing outlives the tests; `--durable` leaves it as it comes.
# Missing programs are installed from Debian's packages, if this is root.
set -euo pipefail

# The programs' first words go wrong if another process takes the free port before they do; then another port is tried.
ATTEMPTS_MAX=5

die() {
    echo "services.sh: $*" >&2
    exit 1
}

postgres_bin() {
    local folder
    folder=$(find /usr/lib/postgresql -mindepth 2 -maxdepth 2 -name bin 2>/dev/null | sort -V | tail -n 1)
    if [ -n "$folder" ] && [ -x "$folder/initdb" ]; then
        echo "$folder"
    elif command -v initdb >/dev/null; then
        dirname "$(readlink -f "$(command -v initdb)")"
    fi
}

install_missing() {
    local missing=()
    [ -n "$(postgres_bin)" ] || missing+=(postgresql)
    command -v redis-server >/dev/null || missing+=(redis-server)
    [ ${#missing[@]} -gt 0 ] || return 0
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        die "install these first: ${missing[*]}"
    fi
    echo "services.sh: installing ${missing[*]}" >&2
    export DEBIAN_FRONTEND=noninteractive
    apt-get -qq -o DPkg::Lock::Timeout=300 update >&2
    # RUNLEVEL=1 keeps the packages from starting servers of their own.
    RUNLEVEL=1 apt-get -qq -y -o DPkg::Lock::Timeout=300 install --no-install-recommends "${missing[@]}" >&2
}

free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# Postgres refuses to run as root: all that belongs to it runs as the user `postgres`, away from folders it may not enter.
as_postgres() {
    if [ "$(id -u)" = 0 ]; then
        (cd / && setpriv --reuid=postgres --regid="$(id -g postgres)" --clear-groups env HOME=/ "$@")
    else
        "$@"
    fi
}

run_postgres() {
    as_postgres "$(postgres_bin)/pg_ctl" -D "$1/postgres/data" -l "$1/postgres/log" -w -s -o "$(cat "$1/postgres/settings")" start \
        >/dev/null
}

start_postgres() {
    local dir=$1 durable=$2 bin port settings
    bin=$(postgres_bin)
    mkdir "$dir/postgres"
    if [ "$(id -u)" = 0 ]; then
        id postgres >/dev/null 2>&1 || useradd --system --no-create-home postgres
        chown postgres "$dir/postgres"
    fi
    settings="-c listen_addresses=127.0.0.1 -k $dir/postgres -c max_connections=300"
    [ "$durable" = yes ] || settings+=" -c fsync=off -c synchronous_commit=off -c full_page_writes=off"
    as_postgres "$bin/initdb" -D "$dir/postgres/data" -A trust -U postgres --no-sync --no-instructions -E UTF8 \
        --locale=C.UTF-8 >"$dir/initdb.log" || die "initdb failed: $(cat "$dir/initdb.log")"
    for _ in $(seq $ATTEMPTS_MAX); do
        port=$(free_port)
        echo "$settings -p $port" >"$dir/postgres/settings"
        if run_postgres "$dir"; then
            echo "export LONGHAUL_TEST_POSTGRES=postgres://postgres@127.0.0.1:$port/postgres"
            echo "export LONGHAUL_TEST_POSTGRES_PID=$(head -n 1 "$dir/postgres/data/postmaster.pid")"
            return
        fi
    done
    die "Postgres does not start: $(tail -n 5 "$dir/postgres/log")"
}

start_redis() {
    local dir=$1 port
    mkdir "$dir/redis"
    for _ in $(seq $ATTEMPTS_MAX); do
        port=$(free_port)
        redis-server --bind 127.0.0.1 --port "$port" --dir "$dir/redis" --save '' --appendonly no --daemonize yes \
            --pidfile "$dir/redis/pid" --logfile "$dir/redis/log" >/dev/null
        for _ in $(seq 100); do
            if [ -s "$dir/redis/pid" ] && [ "$(redis-cli -p "$port" ping 2>/dev/null)" = PONG ]; then
                echo "export LONGHAUL_TEST_REDIS=redis://127.0.0.1:$port/"
                echo "export LONGHAUL_TEST_REDIS_PID=$(cat "$dir/redis/pid")"
                return
            fi
            sleep 0.05
        done
    done
    die "Redis does not start: $(tail -n 5 "$dir/redis/log")"
}

start() {
    local durable=no dir
    if [ "${1:-}" = --durable ]; then
        durable=yes
        shift
    fi
    [ $# = 1 ] || die "start [--durable] DIR"
    install_missing
    mkdir -p "$1"
    [ -z "$(ls -A "$1")" ] || die "$1 is not empty"
    dir=$(readlink -f "$1")
    touch "$dir/longhaul-services"
    # The user `postgres` must reach its folder inside.
    chmod 711 "$dir"
    start_postgres "$dir" "$durable"
    start_redis "$dir"
}

again() {
    [ $# = 1 ] || die "again DIR"
    local dir pid
    dir=$(readlink -f "$1")
    [ -e "$dir/longhaul-services" ] || die "$dir was not made by start"
    # Postgres takes a killed server that its parent has not collected for a living one.
    pid=$(head -n 1 "$dir/postgres/data/postmaster.pid")
    if [ -e "/proc/$pid" ] && ! grep -q '^State:[[:space:]]*Z' "/proc/$pid/status" 2>/dev/null; then
        die "Postgres still runs as $pid"
    fi
    rm -f "$dir/postgres/data/postmaster.pid" "$dir"/postgres/.s.PGSQL.*
    run_postgres "$dir" || die "Postgres does not start: $(tail -n 5 "$dir/postgres/log")"
    echo "export LONGHAUL_TEST_POSTGRES_PID=$(head -n 1 "$dir/postgres/data/postmaster.pid")"
}

stop() {
    [ $# = 1 ] || die "stop DIR"
    local dir
    dir=$(readlink -f "$1")
    [ -e "$dir/longhaul-services" ] || die "$dir was not made by start"
    if [ -s "$dir/redis/pid" ]; then
        # A test may have stopped it.
        kill -CONT "$(cat "$dir/redis/pid")" 2>/dev/null || true
        kill -TERM "$(cat "$dir/redis/pid")" 2>/dev/null || true
    fi
    if [ -s "$dir/postgres/data/postmaster.pid" ]; then
        as_postgres "$(postgres_bin)/pg_ctl" -D "$dir/postgres/data" -m immediate -w -t 10 -s stop || true
    fi
    rm -rf "$dir"
}

case "${1:-}" in
start | again | stop) "$@" ;;
*) die "start [--durable] DIR | again DIR | stop DIR" ;;
esac
