// Goroutines that make, write, read, rename and remove files.
package main

import (
	"fmt"
	"os"
	"sync"
)

func main() {
	var group sync.WaitGroup
	for worker := 0; worker < 8; worker++ {
		group.Add(1)
		go func() {
			defer group.Done()
			directory := fmt.Sprintf("d%d", worker)
			check(os.Mkdir(directory, 0o755))
			for number := 0; number < 20; number++ {
				name := fmt.Sprintf("%s/f%d", directory, number)
				file, err := os.Create(name)
				check(err)
				_, err = file.WriteAt([]byte("content"), int64(number))
				check(err)
				_, err = file.ReadAt(make([]byte, 7), int64(number))
				check(err)
				check(file.Truncate(3))
				check(file.Close())
				check(os.Rename(name, name+"x"))
			}
			entries, err := os.ReadDir(directory)
			check(err)
			for _, entry := range entries {
				check(os.Remove(directory + "/" + entry.Name()))
			}
			check(os.Remove(directory))
		}()
	}
	group.Wait()
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
