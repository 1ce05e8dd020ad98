// Command go is a small device plugin that keeps every rule of `plugwright verify`; with -mutant NAME it has one defect.
// The defects are where they would be in any plugin, behind mutant("name"). A file fail-ID in -root makes a device fail.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"math/rand"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// A kubelet that starts ends the stream and removes sockets, new ones too; kubelet.sock comes last.
const moment = 100 * time.Millisecond

const (
	resource = "example.com/cog"
	broken   = "cog-broken"
)

var (
	root   = flag.String("root", "", "the kubelet's directory")
	defect = flag.String("mutant", "", "the one defect, if any")
	ids    = []string{"cog-0", "cog-1", "cog-2", "cog-3"}
)

func mutant(name string) bool { return *defect == name }

func dir() string { return filepath.Join(*root, "device-plugins") }

// changes wakes every stream; a channel that is closed reaches all of them.
type changes struct {
	mutex sync.Mutex
	next  chan struct{}
}

func (c *changes) wait() <-chan struct{} {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.next
}

func (c *changes) publish() {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	close(c.next)
	c.next = make(chan struct{})
}

// plugin is one registration: nothing of it outlives the next.
type plugin struct {
	api.UnimplementedDevicePluginServer
	health  *changes
	lost    chan struct{}
	ended   chan struct{}
	taken   sync.Map
	latest  []string
	mutex   sync.Mutex
	streams int
}

func healthy(id string) bool {
	_, err := os.Stat(filepath.Join(*root, "fail-"+id))
	return id != broken && (err != nil || mutant("ignores-failure"))
}

func devices() []*api.Device {
	var listed []*api.Device
	for _, id := range append(slices.Clone(ids), broken) {
		state := api.Unhealthy
		if healthy(id) {
			state = api.Healthy
		} else if mutant("drops-failed") && id != broken {
			continue
		}
		topology := &api.TopologyInfo{Nodes: []*api.NUMANode{{ID: 0}}}
		if mutant("numa-minus-one") {
			topology.Nodes[0].ID = -1
		}
		if mutant("health-in-lower-case") {
			state = strings.ToLower(state)
		}
		listed = append(listed, &api.Device{ID: id, Health: state, Topology: topology})
	}
	if mutant("repeated-id") {
		listed = append(listed, listed[0])
	}
	if mutant("random-ids") {
		for number, device := range listed {
			device.ID = fmt.Sprintf("cog-%d-%d", os.Getpid(), number)
		}
	}
	return listed
}

func (p *plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{PreStartRequired: true, GetPreferredAllocationAvailable: true}, nil
}

func (p *plugin) ListAndWatch(_ *api.Empty, stream grpc.ServerStreamingServer[api.ListAndWatchResponse]) error {
	p.count(1)
	defer p.leave()
	sent := ""
	for {
		changed := p.health.wait()
		listed := &api.ListAndWatchResponse{Devices: devices()}
		if text := listed.String(); text != sent || mutant("repeats-list") {
			if err := stream.Send(listed); err != nil {
				return err
			}
			sent = text
		}
		if mutant("ends-stream") {
			return nil
		}
		if mutant("repeats-list") {
			time.Sleep(20 * time.Millisecond)
			continue
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		case <-p.ended:
			return status.Error(codes.Unavailable, "the plugin ends")
		}
	}
}

func (p *plugin) count(by int) int {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.streams += by
	return p.streams
}

// leave notices that the kubelet has ended the last stream: it will not come back by itself.
func (p *plugin) leave() {
	if p.count(-1) == 0 && !mutant("ignores-lost-stream") {
		select {
		case p.lost <- struct{}{}:
		default:
		}
	}
}

func check(wanted []string) error {
	seen := map[string]bool{}
	for _, id := range wanted {
		if !slices.Contains(append(slices.Clone(ids), broken), id) && !mutant("random-ids") && !mutant("allocates-unknown") {
			return status.Errorf(codes.InvalidArgument, "no device %q", id)
		}
		if seen[id] || (!healthy(id) && !mutant("allocates-unhealthy")) {
			return status.Errorf(codes.FailedPrecondition, "%q is not healthy, or asked for twice", id)
		}
		seen[id] = true
	}
	return nil
}

func (p *plugin) Allocate(_ context.Context, request *api.AllocateRequest) (*api.AllocateResponse, error) {
	answer := &api.AllocateResponse{}
	if mutant("panics-on-empty") {
		_ = request.ContainerRequests[0].DevicesIds[0]
	}
	for _, container := range request.ContainerRequests {
		if err := check(container.DevicesIds); err != nil {
			return nil, err
		}
		if mutant("allocates-once") {
			for _, id := range container.DevicesIds {
				if _, taken := p.taken.LoadOrStore(id, true); taken {
					return nil, status.Errorf(codes.ResourceExhausted, "%q is in use", id)
				}
			}
		}
		if mutant("response-per-device") {
			for _, id := range container.DevicesIds {
				answer.ContainerResponses = append(answer.ContainerResponses, p.granted([]string{id}))
			}
			continue
		}
		answer.ContainerResponses = append(answer.ContainerResponses, p.granted(container.DevicesIds))
	}
	if mutant("responses-reversed") {
		slices.Reverse(answer.ContainerResponses)
	}
	if mutant("empty-answer") {
		answer.ContainerResponses = nil
	}
	return answer, nil
}

func (p *plugin) granted(wanted []string) *api.ContainerAllocateResponse {
	sorted := slices.Sorted(slices.Values(wanted))
	if mutant("shares-state") {
		p.mutex.Lock()
		p.latest = sorted
		p.mutex.Unlock()
		time.Sleep(20 * time.Millisecond)
		sorted = p.latest
	}
	granted := &api.ContainerAllocateResponse{Envs: map[string]string{"COGS": strings.Join(sorted, ",")}}
	if mutant("variable-with-equals") {
		granted.Envs["COG=ONE"] = "1"
	}
	for _, id := range sorted {
		node := &api.DeviceSpec{HostPath: "/dev/null", ContainerPath: "/dev/" + id, Permissions: "rw"}
		if mutant("missing-node") {
			node.HostPath = "/dev/no-such-cog"
		}
		if mutant("relative-node") {
			node.ContainerPath = "dev/" + id
		}
		granted.Devices = append(granted.Devices, node)
	}
	return granted
}

func (p *plugin) GetPreferredAllocation(
	_ context.Context, request *api.PreferredAllocationRequest,
) (*api.PreferredAllocationResponse, error) {
	answer := &api.PreferredAllocationResponse{}
	for _, container := range request.ContainerRequests {
		chosen := slices.Clone(container.MustIncludeDeviceIDs)
		if mutant("ignores-required") {
			chosen = nil
		}
		for _, id := range slices.Sorted(slices.Values(container.AvailableDeviceIDs)) {
			if !slices.Contains(chosen, id) && len(chosen) < int(container.AllocationSize) {
				chosen = append(chosen, id)
			}
		}
		if mutant("prefers-at-random") {
			chosen = slices.Clone(container.AvailableDeviceIDs)
			rand.Shuffle(len(chosen), func(i, j int) { chosen[i], chosen[j] = chosen[j], chosen[i] })
			chosen = chosen[:container.AllocationSize]
		}
		answer.ContainerResponses = append(
			answer.ContainerResponses, &api.ContainerPreferredAllocationResponse{DeviceIDs: chosen})
	}
	return answer, nil
}

func (p *plugin) PreStartContainer(
	_ context.Context, request *api.PreStartContainerRequest,
) (*api.PreStartContainerResponse, error) {
	if mutant("starts-once") {
		for _, id := range request.DevicesIds {
			if _, started := p.taken.LoadOrStore("start-"+id, true); started {
				return nil, status.Error(codes.Internal, "it was started before")
			}
		}
	}
	return &api.PreStartContainerResponse{}, check(request.DevicesIds)
}

// serving is the server of one registration, under a name of its own.
type serving struct {
	server *grpc.Server
	plugin *plugin
	path   string
}

func serve(health *changes) (*serving, error) {
	name := fmt.Sprintf("cog-%d-%d.sock", os.Getpid(), time.Now().UnixNano())
	if mutant("fixed-name") {
		name = "cog.sock"
	}
	listener, err := net.Listen("unix", filepath.Join(dir(), name))
	if err != nil {
		return nil, err
	}
	p := &plugin{health: health, lost: make(chan struct{}, 1), ended: make(chan struct{})}
	s := &serving{server: grpc.NewServer(grpc.MaxRecvMsgSize(64 << 20)), plugin: p, path: filepath.Join(dir(), name)}
	api.RegisterDevicePluginServer(s.server, p)
	go func() { _ = s.server.Serve(listener) }()
	if err := register(name); err != nil {
		s.end()
		return nil, err
	}
	return s, nil
}

func (s *serving) end() {
	if mutant("leaks-servers") {
		return
	}
	close(s.plugin.ended)
	s.server.Stop()
	if mutant("removes-others") {
		_ = os.Remove(filepath.Join(dir(), "foreign.sock"))
	}
}

func register(endpoint string) error {
	kubelet, err := grpc.NewClient("unix:"+filepath.Join(dir(), api.KubeletSocket[len(api.DevicePluginPath):]),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer kubelet.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	request := &api.RegisterRequest{Version: api.Version, Endpoint: endpoint, ResourceName: resource,
		Options: &api.DevicePluginOptions{PreStartRequired: true, GetPreferredAllocationAvailable: true}}
	if mutant("name-without-domain") {
		request.ResourceName = "cog"
	}
	if mutant("absolute-endpoint") {
		request.Endpoint = filepath.Join(dir(), endpoint)
	}
	_, err = api.NewRegistrationClient(kubelet).Register(ctx, request)
	return err
}

// run serves until a signal comes: one registration for each kubelet, lost stream and lost socket.
func run(watcher *fsnotify.Watcher, signals <-chan os.Signal, health *changes) error {
	var current *serving
	defer func() {
		if current != nil {
			current.end()
		}
	}()
	again := time.NewTimer(0)
	wait, registrations := 50*time.Millisecond, 0
	renew := func() {
		if mutant("ignores-restart") && registrations > 0 {
			return
		}
		again.Stop()
		if current != nil {
			current.end()
			current = nil
		}
		if _, err := os.Stat(filepath.Join(dir(), "kubelet.sock")); err != nil {
			return
		}
		var err error
		if current, err = serve(health); err != nil {
			log.Print(err)
			if !mutant("gives-up-when-refused") {
				again.Reset(wait)
				wait = min(2*wait, 2*time.Second)
			}
			return
		}
		wait, registrations = 50*time.Millisecond, registrations+1
	}
	for {
		var lost <-chan struct{}
		if current != nil {
			lost = current.plugin.lost
		}
		select {
		case <-signals:
			if mutant("ignores-sigterm") {
				continue
			}
			return nil
		case <-again.C:
			renew()
		case <-lost:
			again.Reset(moment)
		case event, open := <-watcher.Events:
			if !open {
				return errors.New("the watch has ended")
			}
			created := filepath.Base(event.Name) == "kubelet.sock" && event.Has(fsnotify.Create)
			removed := current != nil && event.Name == current.path && event.Has(fsnotify.Remove)
			if created {
				renew()
			} else if removed && !mutant("ignores-its-socket") {
				again.Reset(moment)
			}
			if filepath.Dir(event.Name) == filepath.Clean(*root) {
				health.publish()
			}
		}
	}
}

func main() {
	flag.Parse()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	if _, err := os.Stat(filepath.Join(dir(), "kubelet.sock")); err != nil && mutant("ends-without-kubelet") {
		return
	}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		log.Fatal(err)
	}
	for _, path := range []string{*root, dir()} {
		if err := watcher.Add(path); err != nil {
			log.Fatal(err)
		}
	}
	if mutant("busy-loop") {
		go func() {
			for {
				select {
				default:
				}
			}
		}()
	}
	if err := run(watcher, signals, &changes{next: make(chan struct{})}); err != nil {
		log.Fatal(err)
	}
	if mutant("exit-code-3") {
		os.Exit(3)
	}
}
