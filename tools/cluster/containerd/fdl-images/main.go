// fdl-images keeps one unpacked copy of every image layer on the machine and
// shows it to the containerd of each node.
//
//	fdl-images unpack --store DIR ARCHIVE...         unpacks OCI or Docker archives, prints the images as JSON
//	fdl-images link --store DIR --node NAME,SOCKET,ROOT[ --node ...] NAME@DIGEST...
//
// A node's snapshot of a layer is a link to the one unpacked copy, so that an
// image of any size reaches a node in milliseconds. Layers are only ever the
// lower folders of overlay mounts, which the kernel does not write to.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
)

type names []string

func (n *names) String() string     { return strings.Join(*n, " ") }
func (n *names) Set(v string) error { *n = append(*n, v); return nil }

func run(args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("usage: fdl-images unpack|link")
	}
	flags := flag.NewFlagSet(args[0], flag.ExitOnError)
	root := flags.String("store", "", "folder of unpacked layers")
	var nodes names
	flags.Var(&nodes, "node", "NAME,SOCKET,ROOT of a node's containerd")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	if *root == "" || flags.NArg() == 0 {
		return fmt.Errorf("give --store and at least one archive or image")
	}
	switch args[0] {
	case "unpack":
		found := []image{}
		for _, archive := range flags.Args() {
			images, err := unpack(*root, archive)
			if err != nil {
				return fmt.Errorf("%s: %w", archive, err)
			}
			found = append(found, images...)
		}
		return json.NewEncoder(os.Stdout).Encode(found)
	case "link":
		report, err := linkAll(*root, nodes, flags.Args())
		if err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(report)
	}
	return fmt.Errorf("unknown command %q", args[0])
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
