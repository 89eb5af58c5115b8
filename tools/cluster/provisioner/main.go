// Dynamic provisioner of hostPath volumes for a cluster whose nodes share one
// machine: every node sees the volume folder at the same path, so a volume may
// be mounted by many nodes at once (ReadWriteMany). It runs as a process of the
// control plane, or (in a cluster made by kind) as a pod.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/go-logr/logr"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"
)

const name = "fdl.dev/local"

type hostPath struct{ root string }

// Provision makes one folder that any user of any pod may write to.
func (p hostPath) Provision(_ context.Context, o controller.ProvisionOptions) (*v1.PersistentVolume, controller.ProvisioningState, error) {
	dir := filepath.Join(p.root, o.PVName)
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, controller.ProvisioningFinished, fmt.Errorf("cannot make the volume folder %s: %w", dir, err)
	}
	// MkdirAll obeys the umask, Chmod does not.
	if err := os.Chmod(dir, 0o777); err != nil {
		return nil, controller.ProvisioningFinished, err
	}
	kind := v1.HostPathDirectory
	return &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: o.PVName},
		Spec: v1.PersistentVolumeSpec{
			PersistentVolumeReclaimPolicy: *o.StorageClass.ReclaimPolicy,
			AccessModes:                   o.PVC.Spec.AccessModes,
			Capacity:                      v1.ResourceList{v1.ResourceStorage: o.PVC.Spec.Resources.Requests[v1.ResourceStorage]},
			PersistentVolumeSource:        v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: dir, Type: &kind}},
		},
	}, controller.ProvisioningFinished, nil
}

// Delete removes a released volume's folder, and nothing outside the root.
func (p hostPath) Delete(_ context.Context, pv *v1.PersistentVolume) error {
	if pv.Spec.HostPath == nil || filepath.Dir(pv.Spec.HostPath.Path) != p.root {
		return &controller.IgnoredError{Reason: "the volume " + pv.Name + " is not below " + p.root}
	}
	return os.RemoveAll(pv.Spec.HostPath.Path)
}

func run() error {
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig file; without it, the pod's own access")
	root := flag.String("root", "", "folder in which volumes are made")
	klog.InitFlags(nil)
	flag.Parse()
	if !filepath.IsAbs(*root) {
		return errors.New("give an absolute --root")
	}
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	ctx = logr.NewContext(ctx, klog.Background())
	controller.NewProvisionController(ctx, client, name, hostPath{filepath.Clean(*root)},
		controller.LeaderElection(false)).Run(ctx)
	return nil
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
