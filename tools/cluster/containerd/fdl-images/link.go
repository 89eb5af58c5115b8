package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

const (
	snapshotter   = "overlayfs"
	namespace     = "k8s.io" // where the kubelet's images live
	innerRoot     = "/var/lib/containerd"
	nodeTimeLimit = 2 * time.Minute
)

// result says how many images a node was given and how many it had already.
type result struct {
	Node    string `json:"node"`
	Linked  int    `json:"linked"`
	Present int    `json:"present"`
}

func linkAll(root string, nodes, wanted []string) ([]result, error) {
	results, faults := make([]result, len(nodes)), make([]error, len(nodes))
	var all sync.WaitGroup
	for n, node := range nodes {
		parts := strings.Split(node, ",")
		if len(parts) != 3 {
			return nil, fmt.Errorf("--node %q is not NAME,SOCKET,ROOT", node)
		}
		all.Go(func() {
			results[n], faults[n] = linkNode(store(root), parts[0], parts[1], parts[2], wanted)
			if faults[n] != nil {
				faults[n] = fmt.Errorf("node %s: %w", parts[0], faults[n])
			}
		})
	}
	all.Wait()
	return results, errors.Join(faults...)
}

func linkNode(s store, name, socket, root string, wanted []string) (result, error) {
	done := result{Node: name}
	ctx, cancel := context.WithTimeout(namespaces.WithNamespace(context.Background(), namespace), nodeTimeLimit)
	defer cancel()
	c, err := client.New(socket)
	if err != nil {
		return done, fmt.Errorf("containerd does not answer: %w", err)
	}
	defer c.Close()
	// A lease keeps the garbage collector away from half a picture.
	ctx, release, err := c.WithLease(ctx)
	if err != nil {
		return done, err
	}
	defer func() { _ = release(ctx) }()
	for _, reference := range wanted {
		at := strings.LastIndex(reference, "@")
		if at < 0 {
			return done, fmt.Errorf("%q is not NAME@DIGEST", reference)
		}
		d, err := digest.Parse(reference[at+1:])
		if err != nil {
			return done, fmt.Errorf("%q: %w", reference, err)
		}
		present, err := linkImage(ctx, c, s, root, reference[:at], d)
		if err != nil {
			return done, fmt.Errorf("%s: %w", reference, err)
		}
		if present {
			done.Present++
		} else {
			done.Linked++
		}
	}
	return done, nil
}

func linkImage(ctx context.Context, c *client.Client, s store, root, name string, d digest.Digest) (bool, error) {
	if old, err := c.ImageService().Get(ctx, name); err == nil && old.Target.Digest == d {
		return true, nil
	}
	manifest, err := os.ReadFile(filepath.Join(s.image(d), "manifest.json"))
	if err != nil {
		return false, fmt.Errorf("not unpacked yet: %w", err)
	}
	config, err := os.ReadFile(filepath.Join(s.image(d), "config.json"))
	if err != nil {
		return false, err
	}
	var parsed v1.Manifest
	if err := json.Unmarshal(manifest, &parsed); err != nil {
		return false, err
	}
	_, chain, err := chains(config)
	if err != nil {
		return false, err
	}
	if err := linkLayers(ctx, c, s, root, chain); err != nil {
		return false, err
	}
	labels := map[string]string{}
	if len(chain) > 0 {
		labels["containerd.io/gc.ref.snapshot."+snapshotter] = chain[len(chain)-1].String()
	}
	if err := write(ctx, c, parsed.Config, config, labels); err != nil {
		return false, err
	}
	mediaType := parsed.MediaType
	if mediaType == "" {
		mediaType = v1.MediaTypeImageManifest
	}
	target := v1.Descriptor{MediaType: mediaType, Digest: d, Size: int64(len(manifest))}
	// The layers' archives are not kept: nothing needs them once unpacked.
	if err := write(ctx, c, target, manifest, map[string]string{"containerd.io/gc.ref.content.config": parsed.Config.Digest.String()}); err != nil {
		return false, err
	}
	record := images.Image{Name: name, Target: target, Labels: map[string]string{"io.cri-containerd.image": "managed"}}
	if _, err = c.ImageService().Create(ctx, record); errdefs.IsAlreadyExists(err) {
		_, err = c.ImageService().Update(ctx, record)
	}
	return false, err
}

func write(ctx context.Context, c *client.Client, d v1.Descriptor, raw []byte, labels map[string]string) error {
	err := content.WriteBlob(ctx, c.ContentStore(), "fdl-"+d.Digest.String(), bytes.NewReader(raw), d, content.WithLabels(labels))
	if errdefs.IsAlreadyExists(err) {
		return nil
	}
	return err
}

func linkLayers(ctx context.Context, c *client.Client, s store, root string, chain []digest.Digest) error {
	service := c.SnapshotService(snapshotter)
	parent := ""
	for _, id := range chain {
		if _, err := service.Stat(ctx, id.String()); err == nil {
			parent = id.String()
			continue
		}
		if err := linkLayer(ctx, service, filepath.Join(s.layer(id), "fs"), root, id.String(), parent); err != nil {
			return fmt.Errorf("layer %s: %w", id, err)
		}
		parent = id.String()
	}
	return nil
}

func linkLayer(ctx context.Context, service snapshots.Snapshotter, layer, root, id, parent string) error {
	if !exists(layer) {
		return fmt.Errorf("%s is missing: load the image's archive again", layer)
	}
	key := fmt.Sprintf("fdl-link-%d-%s", os.Getpid(), id)
	mounts, err := service.Prepare(ctx, key, parent)
	if err != nil {
		return err
	}
	folder, err := upper(mounts)
	if err != nil {
		return err
	}
	outside := filepath.Join(root, strings.TrimPrefix(folder, innerRoot))
	if err := os.Remove(outside); err != nil {
		return fmt.Errorf("the new snapshot is not empty: %w", err)
	}
	if err := os.Symlink(layer, outside); err != nil {
		return err
	}
	err = service.Commit(ctx, id, key)
	if errdefs.IsAlreadyExists(err) { // another load was faster
		return service.Remove(ctx, key)
	}
	return err
}

// upper finds the writable folder of a snapshot that has just been prepared.
func upper(mounts []mount.Mount) (string, error) {
	for _, m := range mounts {
		if m.Type == "bind" {
			return m.Source, nil
		}
		for _, option := range m.Options {
			if folder, ok := strings.CutPrefix(option, "upperdir="); ok {
				return folder, nil
			}
		}
	}
	return "", fmt.Errorf("the snapshot has no writable folder: %v", mounts)
}
