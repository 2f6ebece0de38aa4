/* Reports its arguments and its environment. */
#include "report.h"

extern char **environ;

int main(int argc, char **argv)
{
	report_to(argv[1]);
	for (int index = 0; index < argc; index++)
		dprintf(report_file, "%s\n", argv[index]);
	for (char **variable = environ; *variable; variable++)
		dprintf(report_file, "%s\n", *variable);
	return 0;
}
