// Command go_plugin is a device plugin on the types that Kubernetes itself has: the emulated kubelet must not be able
// to tell it from one of ours. It has every method there is; on SIGUSR1 its first device fails.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

type plugin struct {
	api.UnimplementedDevicePluginServer
	count int
	fails chan os.Signal
	ended chan struct{}
}

func (p *plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{PreStartRequired: true, GetPreferredAllocationAvailable: true}, nil
}

func (p *plugin) ListAndWatch(_ *api.Empty, stream grpc.ServerStreamingServer[api.ListAndWatchResponse]) error {
	listed := devices(p.count)
	for {
		if err := stream.Send(&api.ListAndWatchResponse{Devices: listed}); err != nil {
			return err
		}
		select {
		case <-p.fails:
			listed[0].Health = api.Unhealthy
		case <-p.ended:
			return nil
		case <-stream.Context().Done():
			return nil
		}
	}
}

// GetPreferredAllocation wishes for the last ones: the kubelet would take the first by itself.
func (p *plugin) GetPreferredAllocation(_ context.Context, request *api.PreferredAllocationRequest) (*api.PreferredAllocationResponse, error) {
	answer := &api.PreferredAllocationResponse{}
	for _, container := range request.ContainerRequests {
		ids := container.AvailableDeviceIDs
		wish := &api.ContainerPreferredAllocationResponse{DeviceIDs: ids[len(ids)-int(container.AllocationSize):]}
		answer.ContainerResponses = append(answer.ContainerResponses, wish)
	}
	return answer, nil
}

func (p *plugin) Allocate(_ context.Context, request *api.AllocateRequest) (*api.AllocateResponse, error) {
	answer := &api.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		granted := &api.ContainerAllocateResponse{
			Envs:        map[string]string{"GO_DEVICES": strings.Join(container.DevicesIds, ",")},
			Mounts:      []*api.Mount{{HostPath: "/opt/go", ContainerPath: "/go", ReadOnly: true}},
			Annotations: map[string]string{"example.com/go": "yes"},
			CdiDevices:  []*api.CDIDevice{{Name: "example.com/go=" + container.DevicesIds[0]}},
		}
		for _, id := range container.DevicesIds {
			node := &api.DeviceSpec{HostPath: "/dev/" + id, ContainerPath: "/dev/" + id, Permissions: "rw"}
			granted.Devices = append(granted.Devices, node)
		}
		answer.ContainerResponses = append(answer.ContainerResponses, granted)
	}
	return answer, nil
}

func (p *plugin) PreStartContainer(context.Context, *api.PreStartContainerRequest) (*api.PreStartContainerResponse, error) {
	return &api.PreStartContainerResponse{}, nil
}

func devices(count int) []*api.Device {
	var listed []*api.Device
	for n := range count {
		near := &api.TopologyInfo{Nodes: []*api.NUMANode{{ID: int64(n % 2)}}}
		listed = append(listed, &api.Device{ID: fmt.Sprintf("go-%d", n), Health: api.Healthy, Topology: near})
	}
	return listed
}

// serve registers under a name of its own, and returns how to end it.
func serve(dir, resource string, p *plugin) (func(), error) {
	name := fmt.Sprintf("go-%d.sock", time.Now().UnixNano())
	listener, err := net.Listen("unix", filepath.Join(dir, name))
	if err != nil {
		return nil, err
	}
	server := grpc.NewServer()
	api.RegisterDevicePluginServer(server, p)
	go func() { _ = server.Serve(listener) }()
	end := func() { close(p.ended); server.Stop() }
	if err := register(dir, name, resource); err != nil {
		end()
		return nil, err
	}
	return end, nil
}

func register(dir, endpoint, resource string) error {
	target := "unix:" + filepath.Join(dir, "kubelet.sock")
	kubelet, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer kubelet.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	request := &api.RegisterRequest{Version: api.Version, Endpoint: endpoint, ResourceName: resource}
	_, err = api.NewRegistrationClient(kubelet).Register(ctx, request, grpc.WaitForReady(true))
	return err
}

func main() {
	dir := flag.String("dir", "", "the device-plugins directory")
	resource := flag.String("resource", "example.com/go", "the name of the resource")
	count := flag.Int("count", 4, "how many devices to offer")
	flag.Parse()
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		err = watcher.Add(*dir)
	}
	if err != nil {
		log.Fatal(err)
	}
	fails := make(chan os.Signal, 1)
	signal.Notify(fails, syscall.SIGUSR1)
	end := func() {}
	again := func() {
		end()
		end, err = serve(*dir, *resource, &plugin{count: *count, fails: fails, ended: make(chan struct{})})
		if err != nil {
			log.Print(err)
			end = func() {}
		}
	}
	if _, err := os.Stat(filepath.Join(*dir, "kubelet.sock")); err == nil {
		again()
	}
	for event := range watcher.Events {
		if filepath.Base(event.Name) == "kubelet.sock" && event.Has(fsnotify.Create) {
			again()
		}
	}
}
