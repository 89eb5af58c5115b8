module fdl.dev/tools/node

go 1.26.0
