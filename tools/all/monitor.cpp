// cohive-monitor as a part of the program that is all of them: see main.cpp.
#define main cohive_monitor_main
#include "../cohive-monitor.cpp"
