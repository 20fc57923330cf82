module github.com/mscclgo/mscclgo

go 1.26
