/* Every way to change an address space; the report ends with the program's own view of it. */
#define _GNU_SOURCE
#include "report.h"
#include <sys/mman.h>
#include <sys/shm.h>

#define RW (PROT_READ | PROT_WRITE)
#define PAGES(n) ((size_t)(n) * 4096)

static char *map(void *at, int pages, int flags)
{
	char *place = mmap(at, PAGES(pages), RW, MAP_ANONYMOUS | flags, -1, 0);

	if (place == MAP_FAILED)
		_exit(97);
	for (int page = 0; page < pages; page++)
		place[PAGES(page)] = 1;
	return place;
}

int main(int argc, char **argv)
{
	static char view[1 << 16];
	int segment, maps;
	ssize_t length = 0, piece;
	char *a, *b, *c, *d, *e;

	(void)argc;
	report_to(argv[1]);
	a = map(0, 16, MAP_PRIVATE);
	munmap(a + PAGES(3), PAGES(2));
	report("hole", a + PAGES(3));
	b = map(0, 8, MAP_SHARED);
	report("shared", b);
	mprotect(b + PAGES(2), PAGES(3), PROT_READ);
	c = map(0, 4, MAP_PRIVATE | MAP_POPULATE);
	report("populated", c);
	c = mremap(c, PAGES(4), PAGES(64), MREMAP_MAYMOVE);
	c[PAGES(63)] = 1;
	report("grown", c);
	c = mremap(c, PAGES(64), PAGES(32), 0);
	d = map(0, 40, MAP_PRIVATE);
	c = mremap(c, PAGES(32), PAGES(32), MREMAP_MAYMOVE | MREMAP_FIXED, d + PAGES(4));
	c[PAGES(31)] = 1;
	report("moved", c);
	map(d, 2, MAP_PRIVATE | MAP_FIXED);
	report("fixed", d);
	if (mmap(d, PAGES(1), RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, 77, 123) != MAP_FAILED)
		report("fixed", d);
	e = map(0, 1024, MAP_PRIVATE);
	madvise(e, PAGES(512), MADV_HUGEPAGE);
	madvise(e, PAGES(16), MADV_DONTNEED);
	report("advised", e);
	sbrk(PAGES(5));
	*((char *)sbrk(0) - 1) = 1;
	segment = shmget(IPC_PRIVATE, PAGES(3), 0600);
	if (segment < 0)
		return 3;
	a = shmat(segment, 0, 0);
	b = shmat(segment, 0, 0);
	shmctl(segment, IPC_RMID, 0);
	if (a == (void *)-1 || b == (void *)-1)
		return 4;
	a[PAGES(2)] = 1;
	report("segment", a);
	shmdt(b);
	maps = open("/proc/self/maps", O_RDONLY);
	while ((piece = read(maps, view + length, sizeof view - length)) > 0)
		length += piece;
	if (write(report_file, view, length) != length)
		return 5;
	return 0;
}
