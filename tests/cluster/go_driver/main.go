// A DRA driver on Kubernetes' own helper: publishes two devices as protobuf, and accepts no answer in JSON.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

type driver struct {
	name string
}

func (d driver) PrepareResourceClaims(
	_ context.Context, claims []*resourceapi.ResourceClaim,
) (map[types.UID]kubeletplugin.PrepareResult, error) {
	results := make(map[types.UID]kubeletplugin.PrepareResult)
	for _, claim := range claims {
		var result kubeletplugin.PrepareResult
		for _, device := range claim.Status.Allocation.Devices.Results {
			if device.Driver != d.name {
				continue
			}
			result.Devices = append(result.Devices, kubeletplugin.Device{
				Requests:     []string{device.Request},
				PoolName:     device.Pool,
				DeviceName:   device.Device,
				CDIDeviceIDs: []string{d.name + "/claim=" + string(claim.UID) + "-" + device.Device},
			})
		}
		for _, config := range claim.Status.Allocation.Devices.Config {
			if config.Opaque != nil {
				fmt.Printf("parameters %s\n", config.Opaque.Parameters.Raw)
			}
		}
		fmt.Printf("prepared %s created %s\n", claim.Name, claim.CreationTimestamp.UTC().Format("2006-01-02"))
		results[claim.UID] = result
	}
	return results, nil
}

func (d driver) UnprepareResourceClaims(
	_ context.Context, claims []kubeletplugin.NamespacedObject,
) (map[types.UID]error, error) {
	results := make(map[types.UID]error)
	for _, claim := range claims {
		fmt.Printf("unprepared %s\n", claim.Name)
		results[claim.UID] = nil
	}
	return results, nil
}

func (d driver) HandleError(_ context.Context, err error, message string) {
	fmt.Fprintf(os.Stderr, "%s: %v\n", message, err)
}

func devices() []resourceapi.Device {
	model, memory, sparse, zero := "A100", int64(40), false, int64(0)
	version := "570.86.15"
	shared, one := true, resource.MustParse("1Gi")
	first := resourceapi.Device{
		Name: "gpu-0",
		Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			"model":   {StringValue: &model},
			"memory":  {IntValue: &memory},
			"sparse":  {BoolValue: &sparse},
			"index":   {IntValue: &zero},
			"version": {VersionValue: &version},
		},
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
			"memory": {Value: resource.MustParse("40Gi"), RequestPolicy: &resourceapi.CapacityRequestPolicy{
				Default:    &one,
				ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: &one, Step: &one},
			}},
		},
		AllowMultipleAllocations: &shared,
		Taints: []resourceapi.DeviceTaint{
			{Key: "example.com/hot", Effect: resourceapi.DeviceTaintEffectNoSchedule},
		},
	}
	return []resourceapi.Device{first, {Name: "gpu-1"}}
}

func run(ctx context.Context, kubeconfig, node, kubelet, name string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	data := filepath.Join(kubelet, "plugins", name)
	if err := os.MkdirAll(data, 0o750); err != nil {
		return err
	}
	helper, err := kubeletplugin.Start(ctx, driver{name},
		kubeletplugin.DriverName(name),
		kubeletplugin.NodeName(node),
		kubeletplugin.KubeClient(client),
		kubeletplugin.PluginDataDirectoryPath(data),
		kubeletplugin.RegistrarDirectoryPath(filepath.Join(kubelet, "plugins_registry")),
	)
	if err != nil {
		return err
	}
	defer helper.Stop()
	pool := resourceslice.Pool{Slices: []resourceslice.Slice{{Devices: devices()}}}
	resources := resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{node: pool}}
	if err := helper.PublishResources(ctx, resources); err != nil {
		return err
	}
	return printEvents(ctx, client)
}

// What a watch tells of claims, with one line for each event.
func printEvents(ctx context.Context, client kubernetes.Interface) error {
	watch, err := client.ResourceV1().ResourceClaims("").Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	defer watch.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case event, open := <-watch.ResultChan():
			if !open {
				return fmt.Errorf("the watch has ended")
			}
			claim, ok := event.Object.(*resourceapi.ResourceClaim)
			if !ok {
				return fmt.Errorf("not a claim: %v", event.Object)
			}
			fmt.Printf("event %s %s, reserved for %d\n", event.Type, claim.Name, len(claim.Status.ReservedFor))
		}
	}
}

func main() {
	kubeconfig := flag.String("kubeconfig", "", "")
	node := flag.String("node", "", "")
	kubelet := flag.String("kubelet", "", "the kubelet's directory")
	name := flag.String("name", "go.example.com", "of the driver")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := run(ctx, *kubeconfig, *node, *kubelet, *name); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
