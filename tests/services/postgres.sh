#!/usr/bin/env bash
# postgres.sh start DIR PORT -> prints a database URL;  postgres.sh stop DIR. As root the server runs as user postgres.
set -eu
dir=$2 bin=/usr/lib/postgresql/15/bin
as() { if [ "$(id -u)" = 0 ]; then runuser -u postgres -- "$@"; else "$@"; fi; }
# A cluster's data must lie where user postgres may look: not under a root-only home.
data=${TMPDIR:-/tmp}/dray-test-postgres-$(printf %s "$dir" | cksum | cut -d' ' -f1)
if [ "$1" = stop ]; then
    [ ! -f "$data/data/postmaster.pid" ] || as $bin/pg_ctl -D "$data/data" -m immediate stop >/dev/null
    rm -rf "$data"
    exit 0
fi
"$0" stop "$dir"
mkdir -p "$data"; [ "$(id -u)" != 0 ] || chown postgres "$data"
as $bin/initdb -D "$data/data" -U postgres --auth=trust --no-sync -E UTF8 --locale=C >"$data.initdb.log"
# fsync off: the tests kill Dray, never Postgres or the machine.
as $bin/pg_ctl -D "$data/data" -w -s -l "$data/log" -o "-c listen_addresses=127.0.0.1 -p $3 -k $data -c max_connections=300 -c fsync=off" start >&2
as $bin/psql -h 127.0.0.1 -p "$3" -U postgres -qc 'create database stage' >&2
echo "postgres://postgres@127.0.0.1:$3/stage"
