#!/bin/busybox sh
# The first process of a lab's guest: polls its endpoint, prepares, approves, and reports on the console every second.

URL='http://169.254.169.254/metadata/scheduledevents?api-version=2020-07-01'

/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
while read -r module; do insmod "/lib/modules/$module"; done </lib/modules/order

# What the host told on the kernel's command line: fn.name=vm-0 fn.address=10.77.0.10/16 and so on.
name=guest address= gateway= prepare=2 approve=yes end=no
for word in $(cat /proc/cmdline); do
    case $word in
        fn.name=*) name=${word#*=} ;;
        fn.address=*) address=${word#*=} ;;
        fn.gateway=*) gateway=${word#*=} ;;
        fn.prepare=*) prepare=${word#*=} ;;
        fn.approve=*) approve=${word#*=} ;;
        fn.end=*) end=${word#*=} ;;
    esac
done
hostname "$name"
ip link set lo up
ip link set eth0 up
ip addr add "$address" dev eth0
ip route add default via "$gateway"
acpid -f -l /dev/null & # runs /etc/acpi/PWRF/00000080 when the power button is pressed

# A disk that has no file system yet gets one; gives how often this guest has booted with it.
boots() {
    [ -b "$1" ] || { echo null; return; }
    mount -t ext4 "$1" "$2" 2>/dev/null || { mke2fs "$1" && mount -t ext4 "$1" "$2"; } >/dev/null 2>&1
    count=$(cat "$2/boots" 2>/dev/null || echo 0)
    echo $((count + 1)) >"$2/boots"
    sync
    cat "$2/boots"
}
persistent=$(boots /dev/vda /data)
ephemeral=$(boots /dev/vdb /scratch)
read -r boot_id </proc/sys/kernel/random/boot_id

say() { echo "{\"vm\":\"$name\",\"boot_id\":\"$boot_id\",\"uptime\":$(cut -d' ' -f1 /proc/uptime),$1}"; }

if [ "$approve" = yes ] && [ -x /etc/forenotice/run ]; then
    approve=no # Our agent handles events, and this script only reports.
    /etc/forenotice/run &
    echo $! >/tmp/agent.pid
fi

# One event: EventId and EventType.
handle() {
    say "\"prepares\":\"$1\",\"type\":\"$2\""
    sync
    sleep "$prepare"
    for try in 1 2 3 4 5 6 7 8 9 10; do
        if timeout 10 wget -q -O /dev/null --header 'Metadata: true' \
            --post-data "{\"StartRequests\":[{\"EventId\":\"$1\"}]}" "$URL"; then
            say "\"approved\":\"$1\",\"type\":\"$2\""
            return
        fi
        sleep 1
    done
}

disks="\"persistent_boots\":$persistent,\"ephemeral_boots\":$ephemeral"
say "\"booted\":true,$disks"
[ "$end" = no ] || poweroff -f # This guest was only to show that it boots.
handled= event= status= id=
while true; do
    date=
    if timeout 10 wget -q -S -O /tmp/document --header 'Metadata: true' "$URL" 2>/tmp/head; then
        while read -r header value; do
            [ "$header" = Date: ] && date=${value%GMT*}GMT
        done </tmp/head
        rest=$(cat /tmp/document)
        event= status=
        while [ "$rest" != "${rest#*\"EventId\":\"}" ]; do
            rest=${rest#*\"EventId\":\"}
            one=${rest%%\"EventId\":\"*}
            case $one in *"\"$name\""*) ;; *) continue ;; esac
            id=${one%%\"*}
            event=${one#*\"EventType\":\"} event=${event%%\"*}
            status=${one#*\"EventStatus\":\"} status=${status%%\"*}
            case "$status $approve $handled" in
                *"$id"*) ;;
                "Scheduled yes"*) handled="$handled $id"; handle "$id" "$event" & ;;
            esac
        done
    fi
    [ -n "$event" ] || id=
    say "\"clock\":$(date +%s),\"date\":\"$date\",$disks,\"event\":\"$id\",\"type\":\"$event\",\"status\":\"$status\""
    sleep 1
done
