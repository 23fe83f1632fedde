#!/bin/bash
# footage corpus: real H.264 video, 5 clips ~300-600 MiB each + "edited" version.
# usage: gen_footage.sh DESTDIR   -> DESTDIR/v1 (base), DESTDIR/v2 (edited)
set -e
D=${1:-target/bench/corpora/footage}; mkdir -p $D/v1 $D/v2
F="ffmpeg -hide_banner -loglevel error -y"
A="-f lavfi -i sine=frequency=440:sample_rate=48000"
enc="-c:v libx264 -preset ultrafast -g 30 -pix_fmt yuv420p -c:a aac -b:a 192k -map 0:v -map 1:a -shortest"
# CBR-ish intra-heavy, noisy (camera-like) content
$F -f lavfi -i "testsrc2=s=1920x1080:r=30,noise=alls=24:allf=t" $A -t 40 $enc -b:v 100M -maxrate 100M -bufsize 100M $D/v1/A001_C001.mp4
$F -f lavfi -i "mandelbrot=s=1280x720:r=30,noise=alls=16:allf=t" $A -t 60 $enc -b:v 60M -maxrate 60M -bufsize 60M $D/v1/A001_C002.mp4
$F -f lavfi -i "life=s=960x540:r=30:mold=10:ratio=0.3:death_color=#C83232:life_color=#00ff00,scale=1920:1080:flags=neighbor,noise=alls=20:allf=t" $A -t 40 $enc -b:v 80M -maxrate 80M -bufsize 80M $D/v1/A002_C001.mp4
$F -f lavfi -i "gradients=s=1920x1080:r=30:n=6,noise=alls=30:allf=t" $A -t 45 $enc -b:v 100M -maxrate 100M -bufsize 100M $D/v1/A002_C002.mov
$F -f lavfi -i "testsrc2=s=1280x720:r=60,noise=alls=20:allf=t+u" $A -t 60 $enc -b:v 60M -maxrate 60M -bufsize 60M $D/v1/B001_C001.mp4
# edited version
cp $D/v1/A001_C001.mp4 $D/v2/A001_C001.mp4                                        # unchanged
$F -ss 8 -i $D/v1/A001_C002.mp4 -t 40 -c copy $D/v2/A001_C002_trim.mp4            # trimmed, stream copy
$F -i $D/v1/A002_C001.mp4 -c copy -movflags +faststart -metadata title="take 2" $D/v2/A002_C001_fs.mp4  # faststart remux (moov to the front)
$F -i $D/v1/A002_C002.mov -c copy $D/v2/A002_C002.mkv                             # container change
printf "file '%s'\nfile '%s'\n" $D/v1/B001_C001.mp4 $D/v1/B001_C001.mp4 > $D/cc.txt
$F -f concat -safe 0 -i $D/cc.txt -c copy -t 70 $D/v2/B001_C001_concat.mp4        # concat
$F -f lavfi -i "testsrc2=s=1280x720:r=30,noise=alls=28:allf=t" $A -t 20 $enc -b:v 60M -maxrate 60M -bufsize 60M $D/v2/C001_new.mp4 # a new clip
rm $D/cc.txt; sync; du -sm $D/v1 $D/v2; ls -la $D/v1 $D/v2
