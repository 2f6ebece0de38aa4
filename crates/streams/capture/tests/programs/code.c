/* Functions that have a page each: one is never called, one by a thread alone, and some code comes and goes. */
#define _GNU_SOURCE
#include "report.h"
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#define ALONE(name) __attribute__((noinline, section(".alone." #name), aligned(4096)))

static volatile int sum;

ALONE(early) static void early(void) { sum += 1; }
ALONE(never) static void never(void) { sum += 2; }
ALONE(late) static void late(void) { sum += 3; }
ALONE(threaded) static void threaded(void) { sum += 4; }
ALONE(end) static void end(void) { sum += 5; }

static void *thread(void *unused)
{
	(void)unused;
	threaded();
	return 0;
}

/* Maps a page at this address, with a function that returns, and calls it. */
static void made(char *at)
{
	static const char code[] = { (char)0xc3 };

	at = mmap(at, 4096, PROT_READ | PROT_WRITE | PROT_EXEC,
		  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	if (at == MAP_FAILED)
		_exit(97);
	memcpy(at, code, sizeof(code));
	((void (*)(void))at)();
	((void (*)(void))at)();
	munmap(at, 4096);
}

int main(int argc, char **argv)
{
	char *place = mmap(0, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pthread_t other;

	report_to(argv[1]);
	report("early", early);
	report("never", never);
	report("late", late);
	report("threaded", threaded);
	report("made", place);
	early();
	made(place);
	made(place);
	for (int round = 0; round < 20000; round++)
		early();
	if (argc > 100)
		never();
	late();
	pthread_create(&other, 0, thread, 0);
	pthread_join(other, 0);
	end();
	return 0;
}
