package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/containerd/containerd/v2/pkg/archive"
	"github.com/containerd/containerd/v2/pkg/archive/compression"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// store is laid out as images/<digest>/{manifest,config}.json and
// layers/<chain id>/fs. A layer is kept under its chain id because unpacking it
// may copy the permissions of folders from the layers below.
type store string

func (s store) layer(chain digest.Digest) string {
	return filepath.Join(string(s), "layers", chain.Encoded())
}

func (s store) image(d digest.Digest) string { return filepath.Join(string(s), "images", d.Encoded()) }

func chains(config []byte) ([]digest.Digest, []digest.Digest, error) {
	var parsed v1.Image
	if err := json.Unmarshal(config, &parsed); err != nil {
		return nil, nil, fmt.Errorf("the image's config is not JSON: %w", err)
	}
	diffs := parsed.RootFS.DiffIDs
	return diffs, identity.ChainIDs(append([]digest.Digest{}, diffs...)), nil
}

func exists(path string) bool { _, err := os.Stat(path); return err == nil }

// lock keeps two imports from unpacking one layer twice; the kernel frees it
// when the process dies.
func (s store) lock() (func(), error) {
	if err := os.MkdirAll(string(s), 0o755); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(filepath.Join(string(s), "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != nil {
		return nil, err
	}
	return func() { file.Close() }, nil
}

func (s store) clearRemains() error {
	for _, kind := range []string{"layers", "images"} {
		remains, err := filepath.Glob(filepath.Join(string(s), kind, "tmp-*"))
		if err != nil {
			return err
		}
		for _, path := range remains {
			if err := os.RemoveAll(path); err != nil {
				return err
			}
		}
	}
	return nil
}

func unpack(root, name string) ([]image, error) {
	a, err := open(name)
	if err != nil {
		return nil, err
	}
	defer a.file.Close()
	images, err := a.images()
	if err != nil {
		return nil, err
	}
	s := store(root)
	release, err := s.lock()
	if err != nil {
		return nil, err
	}
	defer release()
	if err := s.clearRemains(); err != nil {
		return nil, err
	}
	for _, i := range images {
		if err := s.add(i); err != nil {
			return nil, fmt.Errorf("%s: %w", i.Name, err)
		}
	}
	return images, nil
}

func (s store) add(i image) error {
	diffs, chain, err := chains(i.config)
	if err != nil {
		return err
	}
	if len(diffs) != len(i.layers) {
		return fmt.Errorf("the config lists %d layers, the manifest %d", len(diffs), len(i.layers))
	}
	var parents []string // nearest first, as the unpacker wants them
	for n, layer := range i.layers {
		if !exists(s.layer(chain[n])) {
			if err := s.addLayer(i, layer, diffs[n], chain[n], parents); err != nil {
				return fmt.Errorf("layer %d of %d: %w", n+1, len(i.layers), err)
			}
		}
		parents = append([]string{filepath.Join(s.layer(chain[n]), "fs")}, parents...)
	}
	if exists(s.image(i.Digest)) {
		return nil
	}
	temporary := filepath.Join(string(s), "images", "tmp-"+i.Digest.Encoded())
	if err := os.MkdirAll(temporary, 0o755); err != nil {
		return err
	}
	for file, raw := range map[string][]byte{"manifest.json": i.manifest, "config.json": i.config} {
		if err := os.WriteFile(filepath.Join(temporary, file), raw, 0o644); err != nil {
			return err
		}
	}
	return os.Rename(temporary, s.image(i.Digest))
}

func (s store) addLayer(i image, layer v1.Descriptor, diff, chain digest.Digest, parents []string) error {
	blob, err := i.blob(layer)
	if err != nil {
		return err
	}
	plain := blob
	// The media type is the compression's only sure sign: a tar may begin with
	// any bytes.
	if !strings.HasSuffix(layer.MediaType, ".tar") {
		stream, err := compression.DecompressStream(blob)
		if err != nil {
			return err
		}
		defer stream.Close()
		plain = stream
	}
	temporary := filepath.Join(string(s), "layers", "tmp-"+chain.Encoded())
	target := filepath.Join(temporary, "fs")
	if err := os.MkdirAll(target, 0o755); err != nil {
		return err
	}
	digester := digest.Canonical.Digester()
	tee := io.TeeReader(plain, digester.Hash())
	options := []archive.ApplyOpt{archive.WithConvertWhiteout(archive.OverlayConvertWhiteout), archive.WithParents(parents)}
	if _, err := archive.Apply(context.Background(), target, tee, options...); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, tee); err != nil {
		return err
	}
	if digester.Digest() != diff {
		return fmt.Errorf("the archive is damaged: its content is %s, announced was %s", digester.Digest(), diff)
	}
	return os.Rename(temporary, s.layer(chain))
}
