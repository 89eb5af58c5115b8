package main

import (
	"os"
	"os/signal"
	"syscall"
)

// notifyChildren delivers the end of any child. The signals that would end a
// common process are caught and dropped, so that only SIGKILL from outside the
// namespace ends the holder. (Caught, not ignored: programs that it starts would
// inherit the latter.)
func notifyChildren(to chan os.Signal) {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	signal.Notify(to, syscall.SIGCHLD)
}
