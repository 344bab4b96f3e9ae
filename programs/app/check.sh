#!/bin/sh
# Runs the programs of this folder on whatever GPU there is: undisturbed, with the library and with plain files, killed
# with signal 9 in the middle and started again, and Jacobi as eight ranks on one GPU that lose two nodes' folders.
# Every digest must be the one in digests.txt. One line a run; ends with 1 if any is wrong.
#
#   programs/app/check.sh PROGRAMS FOLDER     PROGRAMS: build/programs/app; FOLDER: a new one for checkpoints
set -u
here=$(dirname "$0")
programs=$1
folder=$2
bad=0

say() { # NAME WHAT OUTPUT WORD: the run's digest must be right, and WORD must be in its output
    want=$(sed -n "s/^$1 //p" "$here/digests.txt")
    got=$(sed -n "s/^digest [^ ]* //p" "$3")
    if [ -n "$want" ] && [ "$got" = "$want" ] && grep -q "$4" "$3"; then
        echo "$1 $2: $got"
    else
        echo "$1 $2: WRONG, digest '$got' instead of $want, '$4' $(grep -c "$4" "$3") times: $(tail -n 1 "$3")"
        bad=1
    fi
}

# NAME WHAT KILLED? OPTIONS...: killed in the middle, if so, and run to its end.
go() {
    name=$1 what=$2 killed=$3
    shift 3
    out=$folder/out
    word=digest
    : >"$out"
    if [ "$killed" = yes ]; then
        # Whoever is late to kill it finds it at this step, not at its end.
        HOLD_AT=100 "$programs/$name" "$@" --pause-ms 30 >"$out" 2>&1 &
        child=$!
        tries=0
        until grep -q '^step [6-9][0-9] ' "$out" || [ $tries -gt 600 ]; do
            sleep 0.05
            tries=$((tries + 1))
        done
        kill -9 $child
        wait $child 2>/dev/null
        # Its other ranks end when it has, each as soon as the driver lets go of the GPU; then their folders are free.
        find "$folder" -name lock -exec flock -w 60 {} true \;
        word='resumed at'
        if grep -q '^digest' "$out"; then
            echo "$name $what: WRONG, it had ended before it was killed"
            bad=1
        fi
        if [ "$what" = "eight ranks, two nodes lost" ]; then
            rm -r "$folder/node-1" "$folder/node-6"
        fi
    fi
    "$programs/$name" "$@" >"$out" 2>&1
    say "$name" "$what" "$out" "$word"
}

mkdir -p "$folder" "$folder/steps" || exit 1
printf 'keep_last = 2\n[local]\nfolders = ["%s/local"]\n' "$folder" >"$folder/one.toml"
printf 'hash_host_on_gpu = true\n[local]\nfolders = ["%s/over"]\n' "$folder" >"$folder/over.toml"
printf 'keep_last = 80\nblock_bytes = 16384\n[local]\nfolders = ["%s/rtm"]\n' "$folder" >"$folder/all.toml"
nodes=
for rank in 0 1 2 3 4 5 6 7; do
    nodes="$nodes\"$folder/node-$rank\", "
done
printf 'block_bytes = 16384\n[local]\nfolders = [%s]\n[erasure]\ngroup = 4\nlosses = 2\n' "$nodes" >"$folder/ranks.toml"
for name in heat2d hydro2d jacobi; do
    go $name alone no
    go $name "the library, killed" yes --config "$folder/one.toml" --every 10
done
go hydro2d "the library hashing over the GPU, killed" yes --config "$folder/over.toml" --every 10
go hydro2d "plain file, killed" yes --plain "$folder/plain" --every 10
go jacobi "eight ranks, two nodes lost" yes --ranks 8 --config "$folder/ranks.toml" --level 3 --every 10
go rtm2d "computed again" no
go rtm2d "the library" no --config "$folder/all.toml"
go rtm2d "plain files" no --plain "$folder/steps"
rm -r "$folder"
exit $bad
