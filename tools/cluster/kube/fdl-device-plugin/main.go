// Device plugin of a node with simulated accelerators. It advertises as many
// devices as the file "resources" below --root says (lines such as
// "nvidia.com/gpu 2") and follows changes of that file, so that simulated
// hardware can be changed while the node runs. Pods get no device node: there
// is no device.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const poll = 500 * time.Millisecond

var resources = []string{"nvidia.com/gpu", "amd.com/gpu"}

func counts(file string) (map[string]int, error) {
	raw, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return map[string]int{}, nil
	}
	if err != nil {
		return nil, err
	}
	found := map[string]int{}
	for line := range strings.Lines(string(raw)) {
		name, number, ok := strings.Cut(strings.TrimSpace(line), " ")
		count, err := strconv.Atoi(number)
		if !ok || err != nil || count < 0 || count > 64 {
			return nil, fmt.Errorf("%s: %q is not RESOURCE COUNT", file, line)
		}
		found[name] = count
	}
	return found, nil
}

type plugin struct {
	api.UnimplementedDevicePluginServer
	resource string
	file     string
}

func (p *plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

func (p *plugin) ListAndWatch(_ *api.Empty, stream grpc.ServerStreamingServer[api.ListAndWatchResponse]) error {
	sent := -1
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for {
		now, err := counts(p.file)
		if err != nil {
			log.Print(err)
		} else if count := now[p.resource]; count != sent {
			sent = count
			answer := &api.ListAndWatchResponse{}
			for i := range count {
				id := fmt.Sprintf("simulated-%d", i)
				answer.Devices = append(answer.Devices, &api.Device{ID: id, Health: api.Healthy})
			}
			if err := stream.Send(answer); err != nil {
				return err
			}
		}
		select {
		case <-stream.Context().Done():
			return nil
		case <-tick.C:
		}
	}
}

func (p *plugin) Allocate(_ context.Context, request *api.AllocateRequest) (*api.AllocateResponse, error) {
	answer := &api.AllocateResponse{}
	for range request.ContainerRequests {
		answer.ContainerResponses = append(answer.ContainerResponses, &api.ContainerAllocateResponse{})
	}
	return answer, nil
}

func register(ctx context.Context, endpoint, resource string) error {
	connection, err := grpc.NewClient("unix://"+api.KubeletSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_, err = api.NewRegistrationClient(connection).Register(ctx, &api.RegisterRequest{
		Version: api.Version, Endpoint: endpoint, ResourceName: resource,
	})
	return err
}

func stamp(path string) time.Time {
	info, err := os.Stat(path)
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// serve offers one resource for as long as the kubelet's socket stays the same
// one: a restarted kubelet empties the socket folder, and then the plugin has to
// listen and register again.
func serve(resource, file string) error {
	began := stamp(api.KubeletSocket)
	if began.IsZero() {
		return errors.New("the kubelet does not listen yet")
	}
	endpoint := "fdl-" + strings.ReplaceAll(resource, "/", "-") + ".sock"
	path := filepath.Join(api.DevicePluginPath, endpoint)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	defer server.Stop()
	api.RegisterDevicePluginServer(server, &plugin{resource: resource, file: file})
	go func() { _ = server.Serve(listener) }()
	if err := register(context.Background(), endpoint, resource); err != nil {
		return fmt.Errorf("the kubelet refused %s: %w", resource, err)
	}
	for stamp(api.KubeletSocket).Equal(began) && !stamp(path).IsZero() {
		time.Sleep(poll)
	}
	return nil
}

// present waits until the node has had a device of the resource: a node that
// never had one shows no such resource at all, as on real nodes.
func present(resource, file string) {
	for {
		if now, err := counts(file); err == nil && now[resource] > 0 {
			return
		}
		time.Sleep(poll)
	}
}

func main() {
	root := flag.String("root", "/run/fdl/driver", "folder of the simulated drivers")
	flag.Parse()
	file := filepath.Join(*root, "resources")
	var all sync.WaitGroup
	for _, resource := range resources {
		all.Go(func() {
			present(resource, file)
			for {
				if err := serve(resource, file); err != nil {
					log.Print(err)
				}
				time.Sleep(poll)
			}
		})
	}
	all.Wait()
}
