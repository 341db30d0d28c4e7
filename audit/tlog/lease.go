package tlog

import (
	"fmt"
	"os"
	"syscall"
)

// lease says which process has a log open, for whoever compares two copies of
// it. It protects nothing: that is the lock.
type lease struct {
	Host         string `json:"host,omitempty"`
	PID          int    `json:"pid"`                 // 1 in many a container
	PIDNamespace string `json:"pid_ns,omitempty"`    // so with which others it can be compared; Linux
	Lock         string `json:"lock_file,omitempty"` // "DEVICE:INODE" of the lock: a copied directory has another
}

// lease is that of this process.
func (l *lock) lease() lease {
	host, err := os.Hostname()
	if err != nil {
		host = "" // it is no reason not to serve
	}
	namespace, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		namespace = ""
	}
	out := lease{Host: host, PID: os.Getpid(), PIDNamespace: namespace}
	if sys, ok := l.file.Sys().(*syscall.Stat_t); ok {
		out.Lock = fmt.Sprintf("%x:%d", sys.Dev, sys.Ino)
	}
	return out
}
