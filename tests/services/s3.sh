#!/usr/bin/env bash
# s3.sh start DIR -> prints the port, when the server answers and bucket `stage` exists;  s3.sh stop DIR
# Needs $WEED and the two AWS_ keys. All ports are derived from a free block, so that several can run side by side.
set -eu
dir=$2
if [ "$1" = stop ]; then
    [ -f "$dir/pid" ] || exit 0
    pid=$(cat "$dir/pid"); rm -f "$dir/pid"
    kill "$pid" 2>/dev/null || exit 0
    for _ in $(seq 100); do kill -0 "$pid" 2>/dev/null || exit 0; sleep 0.1; done
    kill -9 "$pid" 2>/dev/null || true
    exit 0
fi
"$0" stop "$dir"
rm -rf "$dir"; mkdir -p "$dir"
port=$(python3 - <<'PY'
import random, socket
def free(p):
    with socket.socket() as s:
        try: s.bind(("127.0.0.1", p)); return True
        except OSError: return False
while True:
    p = random.randrange(12000, 22000)
    if all(free(q) and free(q + 10000) for q in range(p, p + 5)):
        print(p); break
PY
)
S3_BUCKET=stage WEED_S3_SSE_KEY=local-test-only setsid "$WEED" mini -dir="$dir" -ip=127.0.0.1 -ip.bind=127.0.0.1 -master.telemetry=false \
    -admin.ui=false -webdav=false -s3.port.iceberg=0 -s3.port.lance=0 -s3.port="$port" -master.port=$((port + 1)) \
    -volume.port=$((port + 2)) -filer.port=$((port + 3)) -admin.port=$((port + 4)) >"$dir/log" 2>&1 </dev/null &
pid=$!; echo $pid >"$dir/pid"
for _ in $(seq 300); do
    code=$(curl -s -o /dev/null -w '%{http_code}' "http://127.0.0.1:$port/stage" || true)
    case $code in 200 | 403) echo "$port"; exit 0 ;; esac
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.1
done
echo "the S3 server did not start; see $dir/log" >&2
tail -5 "$dir/log" >&2
exit 1
