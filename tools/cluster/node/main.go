// fdl-node holds one node, or the control plane, of a local cluster: it is the
// first process of a fresh PID, mount, network, UTS and IPC namespace. Killing
// it is a power cut: the kernel then kills every process of the node and drops
// its mounts and its network, so that nothing is left over.
//
// "fdl-node SPEC.json" joins the node's cgroups, starts the holder, writes the
// holder's process id, and ends. The holder builds a root folder out of bind
// mounts, waits for the start file (written once the network is laid), then runs
// the node's processes, restarts those that end, and reaps orphans.
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

type bind struct {
	Source   string `json:"source"`
	Target   string `json:"target"`
	ReadOnly bool   `json:"readOnly"`
}

type process struct {
	Name    string   `json:"name"`
	Argv    []string `json:"argv"`
	Log     string   `json:"log"`
	WaitFor string   `json:"waitFor"` // a unix socket that must answer first
}

type spec struct {
	Hostname    string            `json:"hostname"`
	CgroupProcs []string          `json:"cgroupProcs"`
	Root        string            `json:"root"` // an empty folder that becomes /
	Binds       []bind            `json:"binds"`
	Tmpfs       []string          `json:"tmpfs"`
	Sysctls     map[string]string `json:"sysctls"`
	PidFile     string            `json:"pidFile"`
	StartFile   string            `json:"startFile"`
	Log         string            `json:"log"`
	Env         []string          `json:"env"`
	Processes   []process         `json:"processes"`
}

const namespaces = syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC

func must(err error, format string, args ...any) {
	if err != nil {
		log.Fatalf("%s: %v", fmt.Sprintf(format, args...), err)
	}
}

// launch runs on the machine's side and returns once the holder exists.
func launch(path string, s spec) {
	// A cluster started from a "nice" shell would stay slow for ever.
	if err := syscall.Setpriority(syscall.PRIO_PROCESS, 0, 0); err != nil {
		log.Printf("cannot take the usual priority: %v", err)
	}
	for _, procs := range s.CgroupProcs {
		must(os.WriteFile(procs, []byte(strconv.Itoa(os.Getpid())), 0o644), "cannot join the cgroup of %s", procs)
	}
	out, err := os.OpenFile(s.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	must(err, "cannot open the log %s", s.Log)
	holder := exec.Command("/proc/self/exe", path, "hold")
	holder.Stdout, holder.Stderr, holder.Dir = out, out, "/"
	holder.SysProcAttr = &syscall.SysProcAttr{Cloneflags: namespaces, Setsid: true}
	must(holder.Start(), "cannot make the namespaces of %s", s.Hostname)
	temporary := s.PidFile + ".tmp"
	must(os.WriteFile(temporary, []byte(strconv.Itoa(holder.Process.Pid)), 0o644), "cannot write %s", temporary)
	must(os.Rename(temporary, s.PidFile), "cannot write %s", s.PidFile)
}

func mountpoint(source, target string) error {
	info, err := os.Stat(source)
	if err != nil {
		return err
	}
	if info.IsDir() {
		return os.MkdirAll(target, 0o755)
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return err
	}
	file, err := os.OpenFile(target, os.O_CREATE|os.O_RDONLY, 0o644)
	if err != nil {
		return err
	}
	return file.Close()
}

// systemFolders shows the machine's programs and libraries read-only, keeping
// links such as /bin -> usr/bin as links.
func systemFolders(root string) {
	for _, name := range []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "etc"} {
		info, err := os.Lstat("/" + name)
		if err != nil {
			continue
		}
		if info.Mode()&os.ModeSymlink != 0 {
			link, err := os.Readlink("/" + name)
			must(err, "cannot read the link /%s", name)
			must(os.Symlink(link, filepath.Join(root, name)), "cannot link /%s", name)
			continue
		}
		bindMount(root, bind{Source: "/" + name, Target: "/" + name, ReadOnly: true})
	}
}

func bindMount(root string, b bind) {
	target := filepath.Join(root, b.Target)
	must(mountpoint(b.Source, target), "cannot make the mount point %s", target)
	must(syscall.Mount(b.Source, target, "", syscall.MS_BIND|syscall.MS_REC, ""), "cannot mount %s", b.Source)
	if b.ReadOnly {
		flags := uintptr(syscall.MS_BIND | syscall.MS_REMOUNT | syscall.MS_RDONLY)
		must(syscall.Mount("", target, "", flags, ""), "cannot make %s read-only", b.Target)
	}
}

func buildRoot(s spec) {
	must(syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""), "cannot make the mounts private")
	must(syscall.Mount("tmpfs", s.Root, "tmpfs", 0, "mode=755"), "cannot mount the root %s", s.Root)
	systemFolders(s.Root)
	bindMount(s.Root, bind{Source: "/dev", Target: "/dev"})
	for _, name := range []string{"proc", "sys", ".old"} {
		must(os.MkdirAll(filepath.Join(s.Root, name), 0o755), "cannot make /%s", name)
	}
	must(syscall.Mount("proc", filepath.Join(s.Root, "proc"), "proc", 0, ""), "cannot mount /proc")
	sys := filepath.Join(s.Root, "sys")
	// A fresh sysfs shows this node's own network devices; where the machine
	// forbids one (itself a container), the machine's is shown instead.
	if syscall.Mount("sysfs", sys, "sysfs", 0, "") == nil {
		cgroups := filepath.Join(sys, "fs/cgroup")
		must(syscall.Mount("/sys/fs/cgroup", cgroups, "", syscall.MS_BIND|syscall.MS_REC, ""), "cannot mount the cgroups")
	} else {
		must(syscall.Mount("/sys", sys, "", syscall.MS_BIND|syscall.MS_REC, ""), "cannot mount /sys")
	}
	for _, path := range s.Tmpfs {
		target := filepath.Join(s.Root, path)
		must(os.MkdirAll(target, 0o755), "cannot make %s", path)
		must(syscall.Mount("tmpfs", target, "tmpfs", 0, "mode=1777"), "cannot mount %s", path)
	}
	for _, b := range s.Binds {
		bindMount(s.Root, b)
	}
	must(syscall.PivotRoot(s.Root, filepath.Join(s.Root, ".old")), "cannot change the root to %s", s.Root)
	must(os.Chdir("/"), "cannot enter the new root")
	must(syscall.Unmount("/.old", syscall.MNT_DETACH), "cannot leave the old root")
	must(os.Remove("/.old"), "cannot remove the old root's mount point")
	// The kubelet needs shared mounts, so that a volume reaches running pods.
	must(syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_SHARED, ""), "cannot share the mounts")
}

func await(what string, limit time.Duration, done func() bool) bool {
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if done() {
			return true
		}
	}
	log.Printf("%s did not come within %s", what, limit)
	return false
}

func answers(socket string) bool {
	connection, err := net.DialTimeout("unix", socket, time.Second)
	if err != nil {
		return false
	}
	connection.Close()
	return true
}

func start(p process, env []string) (int, error) {
	out, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return 0, err
	}
	defer out.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	return syscall.ForkExec(p.Argv[0], p.Argv, &syscall.ProcAttr{
		Dir: "/", Env: env, Files: []uintptr{null.Fd(), out.Fd(), out.Fd()}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
}

// supervise starts every process and restarts those that end: after 0.3 s at
// first, twice as long each time, at most 5 s, so that a process which needs
// another one (the API server needs etcd) simply tries again.
func supervise(s spec) {
	type ended struct {
		pid    int
		status syscall.WaitStatus
	}
	// Process ids are learnt under the same goroutine that handles ends, so an
	// end is never seen before its start.
	starts := make(chan process, len(s.Processes))
	for _, p := range s.Processes {
		go func() {
			if p.WaitFor != "" {
				await(p.WaitFor, time.Minute, func() bool { return answers(p.WaitFor) })
			}
			starts <- p
		}()
	}
	running, pause := map[int]process{}, map[string]time.Duration{}
	begun := map[string]time.Time{}
	tick := time.NewTicker(50 * time.Millisecond)
	children := make(chan os.Signal, 1)
	notifyChildren(children)
	retry := func(p process) {
		if time.Since(begun[p.Name]) > 30*time.Second {
			pause[p.Name] = 0
		}
		pause[p.Name] = min(max(2*pause[p.Name], 300*time.Millisecond), 5*time.Second)
		time.AfterFunc(pause[p.Name], func() { starts <- p })
	}
	for {
		select {
		case p := <-starts:
			begun[p.Name] = time.Now()
			pid, err := start(p, s.Env)
			if err != nil {
				log.Printf("cannot start %s: %v", p.Name, err)
				retry(p)
				continue
			}
			running[pid] = p
		case <-children:
		case <-tick.C:
		}
		for {
			var e ended
			pid, err := syscall.Wait4(-1, &e.status, syscall.WNOHANG, nil)
			if err != nil || pid <= 0 {
				break
			}
			if p, ours := running[pid]; ours {
				delete(running, pid)
				log.Printf("%s ended (exit code %d, signal %d); starting it again", p.Name, e.status.ExitStatus(), e.status.Signal())
				retry(p)
			}
		}
	}
}

func hold(s spec) {
	log.SetFlags(log.LstdFlags | log.LUTC)
	must(syscall.Sethostname([]byte(s.Hostname)), "cannot set the host name %s", s.Hostname)
	buildRoot(s)
	for key, value := range s.Sysctls {
		path := "/proc/sys/" + strings.ReplaceAll(key, ".", "/")
		if err := os.WriteFile(path, []byte(value), 0o644); err != nil {
			log.Printf("cannot set %s to %s: %v", key, value, err)
		}
	}
	present := func() bool { _, err := os.Stat(s.StartFile); return err == nil }
	if !await("the start file "+s.StartFile, time.Minute, present) {
		os.Exit(1)
	}
	supervise(s)
}

func main() {
	log.SetFlags(0)
	if len(os.Args) < 2 {
		log.Fatal("usage: fdl-node SPEC.json")
	}
	raw, err := os.ReadFile(os.Args[1])
	must(err, "cannot read the node's description")
	var s spec
	must(json.Unmarshal(raw, &s), "cannot understand %s", os.Args[1])
	if len(os.Args) > 2 && os.Args[2] == "hold" {
		hold(s)
		return
	}
	launch(os.Args[1], s)
}
