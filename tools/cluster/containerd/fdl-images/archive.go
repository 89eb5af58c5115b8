package main

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"runtime"
	"strings"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

const (
	dockerIndex = "application/vnd.docker.distribution.manifest.list.v2+json"
	smallBlob   = 16 << 20 // manifests and configs are a few KiB
)

type image struct {
	Name   string        `json:"name"`
	Digest digest.Digest `json:"digest"`

	manifest, config []byte
	layers           []v1.Descriptor
	blob             func(v1.Descriptor) (io.Reader, error)
}

// bundle gives random access to the files of an uncompressed tar.
type bundle struct {
	file  *os.File
	parts map[string]*io.SectionReader
}

func open(name string) (*bundle, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	a := &bundle{file, map[string]*io.SectionReader{}}
	links := map[string]string{}
	reader := tar.NewReader(file)
	for {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			file.Close()
			return nil, fmt.Errorf("not an image archive (an uncompressed tar): %w", err)
		}
		at, err := file.Seek(0, io.SeekCurrent)
		if err != nil {
			file.Close()
			return nil, err
		}
		key := path.Clean(header.Name)
		switch header.Typeflag {
		case tar.TypeReg:
			a.parts[key] = io.NewSectionReader(file, at, header.Size)
		case tar.TypeSymlink:
			links[key] = path.Join(path.Dir(key), header.Linkname)
		case tar.TypeLink:
			links[key] = path.Clean(header.Linkname)
		}
	}
	for key, target := range links {
		if part, ok := a.parts[target]; ok {
			a.parts[key] = part
		}
	}
	return a, nil
}

func (a *bundle) part(name string) (*io.SectionReader, error) {
	part, ok := a.parts[path.Clean(name)]
	if !ok {
		return nil, fmt.Errorf("the archive has no %s", name)
	}
	return io.NewSectionReader(part, 0, part.Size()), nil
}

func (a *bundle) small(name string) ([]byte, error) {
	part, err := a.part(name)
	if err != nil {
		return nil, err
	}
	if part.Size() > smallBlob {
		return nil, fmt.Errorf("%s is too large for a manifest: %d bytes", name, part.Size())
	}
	return io.ReadAll(part)
}

func blobPath(d digest.Digest) string { return "blobs/" + d.Algorithm().String() + "/" + d.Encoded() }

func (a *bundle) verified(d digest.Digest) ([]byte, error) {
	if err := d.Validate(); err != nil {
		return nil, err
	}
	raw, err := a.small(blobPath(d))
	if err == nil && d.Algorithm().FromBytes(raw) != d {
		err = fmt.Errorf("the archive is damaged: %s has another digest", blobPath(d))
	}
	return raw, err
}

func (a *bundle) images() ([]image, error) {
	if _, ok := a.parts["index.json"]; ok {
		raw, err := a.small("index.json")
		if err != nil {
			return nil, err
		}
		return a.fromIndex(raw, "")
	}
	if _, ok := a.parts["manifest.json"]; ok {
		return a.fromDocker()
	}
	return nil, errors.New("neither index.json (OCI) nor manifest.json (Docker) is in it")
}

func (a *bundle) fromIndex(raw []byte, name string) ([]image, error) {
	var index v1.Index
	if err := json.Unmarshal(raw, &index); err != nil {
		return nil, fmt.Errorf("the index is not JSON: %w", err)
	}
	var found []image
	for _, d := range index.Manifests {
		if p := d.Platform; p != nil && (p.OS != "linux" || p.Architecture != runtime.GOARCH) {
			continue
		}
		own := name
		for _, key := range []string{v1.AnnotationRefName, "io.containerd.image.name"} {
			if value := d.Annotations[key]; strings.ContainsAny(value, ":/") {
				own = value
			}
		}
		raw, err := a.verified(d.Digest)
		if err != nil {
			return nil, err
		}
		if d.MediaType == v1.MediaTypeImageIndex || d.MediaType == dockerIndex {
			nested, err := a.fromIndex(raw, own)
			if err != nil {
				return nil, err
			}
			found = append(found, nested...)
			continue
		}
		one, err := a.fromManifest(raw, d.Digest, own)
		if err != nil {
			return nil, err
		}
		found = append(found, one)
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("no image for linux/%s is in it", runtime.GOARCH)
	}
	return found, nil
}

func (a *bundle) fromManifest(raw []byte, d digest.Digest, name string) (image, error) {
	var manifest v1.Manifest
	if err := json.Unmarshal(raw, &manifest); err != nil {
		return image{}, fmt.Errorf("the manifest %s is not JSON: %w", d, err)
	}
	config, err := a.verified(manifest.Config.Digest)
	if err != nil {
		return image{}, err
	}
	full, err := normal(name)
	if err != nil {
		return image{}, err
	}
	blob := func(layer v1.Descriptor) (io.Reader, error) { return a.part(blobPath(layer.Digest)) }
	return image{Name: full, Digest: d, manifest: raw, config: config, layers: manifest.Layers, blob: blob}, nil
}

func normal(name string) (string, error) {
	if name == "" {
		return "", errors.New("an image in it has no name: write one when saving, as NAME:TAG")
	}
	named, err := reference.ParseDockerRef(name)
	if err != nil {
		return "", fmt.Errorf("the image name %q: %w", name, err)
	}
	return named.String(), nil
}

// fromDocker reads what "docker save" wrote before it wrote OCI layouts: layers
// are uncompressed, so a layer's digest is its diff id.
func (a *bundle) fromDocker() ([]image, error) {
	raw, err := a.small("manifest.json")
	if err != nil {
		return nil, err
	}
	var entries []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	if err := json.Unmarshal(raw, &entries); err != nil {
		return nil, fmt.Errorf("manifest.json: %w", err)
	}
	var found []image
	for _, entry := range entries {
		config, err := a.small(entry.Config)
		if err != nil {
			return nil, err
		}
		var parsed v1.Image
		if err := json.Unmarshal(config, &parsed); err != nil {
			return nil, fmt.Errorf("%s: %w", entry.Config, err)
		}
		if len(parsed.RootFS.DiffIDs) != len(entry.Layers) {
			return nil, fmt.Errorf("%s lists %d layers, manifest.json %d", entry.Config, len(parsed.RootFS.DiffIDs), len(entry.Layers))
		}
		files := map[digest.Digest]string{}
		manifest := v1.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageManifest}
		manifest.Config = v1.Descriptor{MediaType: v1.MediaTypeImageConfig, Digest: digest.FromBytes(config), Size: int64(len(config))}
		for i, layer := range entry.Layers {
			part, err := a.part(layer)
			if err != nil {
				return nil, err
			}
			d := parsed.RootFS.DiffIDs[i]
			files[d] = layer
			manifest.Layers = append(manifest.Layers, v1.Descriptor{MediaType: v1.MediaTypeImageLayer, Digest: d, Size: part.Size()})
		}
		encoded, err := json.Marshal(manifest)
		if err != nil {
			return nil, err
		}
		blob := func(layer v1.Descriptor) (io.Reader, error) { return a.part(files[layer.Digest]) }
		for _, tag := range entry.RepoTags {
			full, err := normal(tag)
			if err != nil {
				return nil, err
			}
			found = append(found, image{full, digest.FromBytes(encoded), encoded, config, manifest.Layers, blob})
		}
	}
	if len(found) == 0 {
		return nil, errors.New("no image in it has a name: save it as NAME:TAG")
	}
	return found, nil
}
