// Checks an exported log with the packages that Go's module mirror is checked with, and nothing of Manta's: the note's signature
// (sumdb/note), every entry under the signed root, proofs of inclusion, and that an older tree head, if one is given, is of the same history (tlog).
//
//	manta-aggregator ledger export FOLDER --dir DIR
//	GO111MODULE=off GOPATH=/usr/share/gocode go run benchmarks/tlog/main.go FOLDER [OLDER_CHECKPOINT]
//
// Debian has both: golang-go and golang-golang-x-mod-dev.
package main

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

const height = 8

// files reads tiles of an exported log.
type files struct{ folder string }

func (f files) Height() int                     { return height }
func (f files) SaveTiles([]tlog.Tile, [][]byte) {}
func (f files) ReadTiles(tiles []tlog.Tile) ([][]byte, error) {
	var all [][]byte
	for _, tile := range tiles {
		data, err := os.ReadFile(filepath.Join(f.folder, "tile", strconv.Itoa(tile.L), name(tile.N, tile.W)))
		if err != nil {
			return nil, err
		}
		all = append(all, data)
	}
	return all, nil
}

// name is what C2SP's tlog-tiles calls a tile or a bundle in its row.
func name(index int64, width int) string {
	path := fmt.Sprintf("%03d", index%1000)
	for index >= 1000 {
		index /= 1000
		path = fmt.Sprintf("x%03d/%s", index%1000, path)
	}
	if width < 1<<height {
		path += fmt.Sprintf(".p/%d", width)
	}
	return path
}

// head returns the tree that a checkpoint is of, its signature checked by the key in the folder.
func head(folder, file string) (tlog.Tree, error) {
	key, err := os.ReadFile(filepath.Join(folder, "key"))
	if err != nil {
		return tlog.Tree{}, err
	}
	verifier, err := note.NewVerifier(strings.TrimSpace(string(key)))
	if err != nil {
		return tlog.Tree{}, err
	}
	message, err := os.ReadFile(file)
	if err != nil {
		return tlog.Tree{}, err
	}
	opened, err := note.Open(message, note.VerifierList(verifier))
	if err != nil {
		return tlog.Tree{}, err
	}
	lines := strings.Split(opened.Text, "\n")
	if len(lines) < 4 || lines[0] != verifier.Name() {
		return tlog.Tree{}, fmt.Errorf("the checkpoint is of %q, the key of %q", lines[0], verifier.Name())
	}
	size, err := strconv.ParseInt(lines[1], 10, 64)
	if err != nil {
		return tlog.Tree{}, err
	}
	root, err := tlog.ParseHash(lines[2])
	return tlog.Tree{N: size, Hash: root}, err
}

// entries calls see with each entry of the bundles, in order.
func entries(folder string, size int64, see func(int64, []byte) error) error {
	for index := int64(0); index<<height < size; index++ {
		width := size - index<<height
		if width > 1<<height {
			width = 1 << height
		}
		data, err := os.ReadFile(filepath.Join(folder, "tile", "entries", name(index, int(width))))
		if err != nil {
			return err
		}
		for place := index << height; place < index<<height+width; place++ {
			if len(data) < 2 || len(data)-2 < int(binary.BigEndian.Uint16(data)) {
				return fmt.Errorf("the bundle of entry %d is cut off", place)
			}
			end := 2 + int(binary.BigEndian.Uint16(data))
			if err := see(place, data[2:end]); err != nil {
				return err
			}
			data = data[end:]
		}
		if len(data) != 0 {
			return fmt.Errorf("bundle %d has more than its entries", index)
		}
	}
	return nil
}

func check(folder, older string) error {
	tree, err := head(folder, filepath.Join(folder, "checkpoint"))
	if err != nil {
		return err
	}
	reader := tlog.TileHashReader(tree, files{folder})
	err = entries(folder, tree.N, func(place int64, entry []byte) error {
		hash := tlog.RecordHash(entry)
		proof, err := tlog.ProveRecord(tree.N, place, reader)
		if err != nil {
			return err
		}
		return tlog.CheckRecord(proof, tree.N, tree.Hash, place, hash)
	})
	if err != nil {
		return err
	}
	fmt.Printf("%d entries are under the signed root %s\n", tree.N, hex.EncodeToString(tree.Hash[:]))
	if older == "" {
		return nil
	}
	before, err := head(folder, older)
	if err != nil {
		return err
	}
	proof, err := tlog.ProveTree(tree.N, before.N, reader)
	if err != nil {
		return err
	}
	if err := tlog.CheckTree(proof, tree.N, tree.Hash, before.N, before.Hash); err != nil {
		return err
	}
	fmt.Printf("the tree of %d entries is a prefix of it\n", before.N)
	return nil
}

func main() {
	if len(os.Args) != 2 && len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: main.go FOLDER [OLDER_CHECKPOINT]")
		os.Exit(2)
	}
	if err := check(os.Args[1], strings.Join(os.Args[2:], "")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
