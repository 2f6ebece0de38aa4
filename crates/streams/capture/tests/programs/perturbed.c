/* The emulator, with memory that is spoilt when it is freed. */
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	(void)argc;
	setenv("G_SLICE", "always-malloc", 1);
	setenv("MALLOC_PERTURB_", "85", 1);
	execvp("qemu-x86_64", argv);
	return 127;
}
